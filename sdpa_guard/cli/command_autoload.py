"""``autoload``: let ``SDPA_GUARD`` work on torch before 2.5."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sysconfig
from pathlib import Path
from typing import Any

from sdpa_guard_autoload import PTH_FILE, PTH_LINE, VARIABLE

from ..limits.releases import RUNNING_TORCH
from ..torch_private import LOADS_EXTENSIONS
from .argument_parser import Commands, add_command, say

_SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "autoload",
        _act,
        does=f"let {VARIABLE} reach every program of this environment on torch before 2.5 too, "
        "by a .pth file of one line; later releases need none. Take it away before you uninstall",
        example="--remove",
    )
    parser.add_argument("--remove", action="store_true", help="take the file away again")


def pth_file() -> Path:
    """Where Python looks for it as it starts."""
    return Path(sysconfig.get_path("purelib"), PTH_FILE)


def torch_looks_by_itself() -> bool:
    """Whether this torch comes to the guard without a file."""
    points = importlib.metadata.entry_points()
    # Python 3.9 has a plain dictionary of groups.
    group: Any = (
        points.select(group="torch.backends")
        if hasattr(points, "select")
        else points.get("torch.backends", ())
    )
    installed = any(point.name == "sdpa_guard" for point in group)
    switched_on = os.environ.get(_SWITCH, "1") == "1"
    return installed and switched_on and LOADS_EXTENSIONS


def _act(options: argparse.Namespace) -> int:
    file = pth_file()
    try:
        if options.remove:
            file.unlink(missing_ok=True)
            told = f"{file} is gone"
        elif torch_looks_by_itself():
            told = f"not needed: torch {RUNNING_TORCH} looks for sdpa_guard by itself; " + (
                f"{file} can go: sdpa-guard autoload --remove"
                if file.exists()
                else f"nothing is written (with {_SWITCH}=0 it would be)"
            )
        else:
            file.write_text(PTH_LINE + "\n")
            told = f"{file} is in place: {VARIABLE}=1 guards every program of this environment"
    except OSError as fault:
        say(f"sdpa-guard autoload: {fault}")
        return 1
    print(told)
    return 0
