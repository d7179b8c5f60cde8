"""One file per method; the file name is the name on the command line and in every table."""
