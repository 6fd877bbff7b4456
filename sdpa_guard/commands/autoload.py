"""``autoload``: let ``SDPA_GUARD`` work on torch before 2.5."""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path

from sdpa_guard_autoload import PTH_FILE, PTH_LINE, VARIABLE

from .parser import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "autoload",
        _act,
        does=f"let {VARIABLE} reach every program of this environment on torch before 2.5 too, "
        "by a .pth file of one line; later releases need none",
        example="--remove",
    )
    parser.add_argument("--remove", action="store_true", help="take the file away again")


def _act(options: argparse.Namespace) -> int:
    file = Path(sysconfig.get_path("purelib"), PTH_FILE)
    try:
        if options.remove:
            file.unlink(missing_ok=True)
            print(f"{file} is gone")
        else:
            file.write_text(PTH_LINE + "\n")
            print(f"{file} is in place: {VARIABLE}=1 guards every program of this environment")
    except OSError as fault:
        print(f"sdpa-guard autoload: {fault}", file=sys.stderr)
        return 1
    return 0
