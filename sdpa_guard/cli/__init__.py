"""The command line.

main               lists the commands, and ends with a command's exit status
command_*          one command each: its arguments, and what it does
argument_parser    what the commands' arguments have in common
as_python_would    runs a script or a module as ``python`` does
"""
