"""Speed, measured on this machine against plainly written counterparts."""
