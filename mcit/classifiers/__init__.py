"""One file per classifier; the file name is the name on the command line and in every table."""

from mcit.registry import own_folders

__path__ += own_folders("classifiers")
