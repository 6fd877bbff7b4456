"""The command line: ``python -m sdpa_guard`` and ``sdpa-guard``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Optional

from .. import __version__
from . import (
    command_autoload,
    command_check,
    command_doctor,
    command_limits,
    command_probe,
    command_run,
)
from .argument_parser import Parser, drop, flush, say

#: In the order of the help; each adds its own arguments.
_COMMANDS = (
    command_check,
    command_limits,
    command_doctor,
    command_run,
    command_probe,
    command_autoload,
)
#: What a shell reports of a program that a signal ended.
_BY_SIGNAL = 128


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command; returns its exit status. A usage error exits with status 2."""
    parser = _parser()
    status: int
    try:
        options = parser.parse_args(arguments)
        parser = options.parser
        if options.act is not command_run.act:
            status = options.act(options)
            flush()
            return status
    except KeyboardInterrupt:
        return _BY_SIGNAL + signal.SIGINT
    except OSError as fault:
        broken_pipe = isinstance(fault, BrokenPipeError)
        if not broken_pipe:
            say(f"{parser.prog}: error: {fault}")
        if sys.stdout is not None:
            drop(sys.stdout)
        return _BY_SIGNAL + signal.SIGPIPE if broken_pipe else 1
    # Nothing is caught: the program ends as python would end it.
    status = command_run.act(options)
    return status


def _parser() -> Parser:
    parser = Parser(prog="sdpa-guard", description="Keep attention calls within their kernels.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    parser.set_defaults(
        act=lambda _: parser.error(f"give a command: {', '.join(commands.choices)}"),
        parser=parser,
    )
    return parser
