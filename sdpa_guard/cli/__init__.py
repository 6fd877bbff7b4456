"""The commands of the command line, one module each: its arguments, and what it does."""
