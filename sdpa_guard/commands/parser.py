"""What all commands' argument parsers have in common."""

from __future__ import annotations

import argparse
from typing import Any, Callable, NoReturn

USAGE_ERROR = 2

#: What ``add_subparsers`` returns.
Commands = Any


class Parser(argparse.ArgumentParser):
    """Ends with one line on stderr and status 2 where an argument is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def add_command(
    commands: Commands,
    name: str,
    act: Callable[[argparse.Namespace], int],
    *,
    does: str,
    example: str,
) -> Parser:
    """A parser for one more command; ``act`` returns the exit status."""
    parser: Parser = commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"example: sdpa-guard {name} {example}",
    )
    parser.set_defaults(act=act, parser=parser)
    return parser
