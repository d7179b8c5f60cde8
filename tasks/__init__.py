"""One file per task; the file name is the name on the command line. Imported as mcit.tasks."""

from mcit.registry import own_folders

__path__ += own_folders("tasks")
