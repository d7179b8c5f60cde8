"""The commands of `mcit`, one file each: HELP, add_options(parser) and run(arguments)."""
