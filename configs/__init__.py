"""Named experiments; each file says only what differs from the defaults."""
