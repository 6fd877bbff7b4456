"""What all commands' argument parsers have in common."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from typing import Any, Callable, NoReturn, Optional, TextIO

USAGE_ERROR = 2

#: What ``add_subparsers`` returns.
Commands = Any


class Parser(argparse.ArgumentParser):
    """Ends with one line on stderr and status 2 where an argument is wrong."""

    def error(self, message: str) -> NoReturn:
        # What was typed is part of it, and may be long or of many lines.
        said = shortened(" ".join(message.split()), 400)
        self.exit(USAGE_ERROR, f"{self.prog}: error: {said}")

    def exit(self, status: int = 0, message: Optional[str] = None) -> NoReturn:
        flush()  # The help may be on its way: Python would report a full disk in its own way.
        if message is not None:
            say(message)
        sys.exit(status)


def shortened(text: str, length: int) -> str:
    """The text, without its end where it is too long to be read."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def whole_number(text: str) -> int:
    """An argument's number, in plain digits."""
    digits = re.fullmatch(r"(-?)0*([0-9]+)", text)
    if digits is None:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {shortened(text, 60)!r}")
    # Python reads no more than some thousand digits, and a hundred are too many already.
    return int(digits[1] + digits[2][:100])


def fraction(text: str) -> float:
    """An argument's number, which may have decimals."""
    # float() takes more: digits of other scripts, underscores and blanks.
    if re.fullmatch(r"[-+.0-9a-zA-Z]+", text):
        with contextlib.suppress(ValueError):
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number, not {shortened(text, 60)!r}")


def flush() -> None:
    """Write what stdout still holds, if there is one."""
    if sys.stdout is not None:
        sys.stdout.flush()


def say(message: str) -> None:
    """Say it on stderr, if there is one: ``print`` would take stdout for it."""
    if sys.stderr is None:
        return
    with contextlib.suppress(ValueError):  # the program of ``run`` may have closed it
        try:
            print(message, file=sys.stderr, flush=True)
        except OSError:
            drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Let go of what could not be written: Python tries again at its end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
