"""One file per task; the file name is the name on the command line. Imported as mcit.tasks."""
