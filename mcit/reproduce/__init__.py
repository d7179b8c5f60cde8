"""Published and measured tables as ledgers: for every figure the command that makes it, and whether it was met."""
