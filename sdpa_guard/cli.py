"""The command line: ``python -m sdpa_guard`` and ``sdpa-guard``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Optional

from .commands import autoload, check, doctor, limits, probe, run
from .commands.parser import Parser

_COMMANDS = (check, limits, doctor, run, probe, autoload)
#: What a shell reports of a program that a signal ended.
_BY_SIGNAL = 128


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command; returns its exit status. A usage error exits with status 2."""
    parser = Parser(prog="sdpa-guard", description="Keep attention calls within their kernels.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.act(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        if options.act is run.act:
            raise  # the program's own end, as python would show it
        return _BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BY_SIGNAL + signal.SIGPIPE
    return status
