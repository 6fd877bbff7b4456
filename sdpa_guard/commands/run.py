"""``run``: a program, guarded."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
from pathlib import Path
from typing import Optional

from sdpa_guard_autoload import VARIABLE

from .. import dispatcher, program
from ..settings import POLICIES
from .parser import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "run",
        act,
        does="run a program as python would, with every attention call of it guarded",
        example="--report report.json train.py --batch-size 512",
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default="split", help="what to do with a call over a limit"
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write the report as JSON to FILE, or - for standard output; "
        "under torchrun each process writes one of its own, with its rank in the name",
    )
    parser.add_argument(
        "-m", action="store_true", dest="as_module", help="run a module, as python -m"
    )
    parser.add_argument("program", metavar="SCRIPT", help="the script, or with -m the module")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")


def act(options: argparse.Namespace) -> int:
    """Run the program; returns if it does. Raises what it raises."""
    if not options.as_module and not os.path.exists(options.program):
        options.parser.error(f"argument SCRIPT: no such file: {options.program!r}")
    file = _report_file(options)
    os.environ[VARIABLE] = options.policy  # for the processes that the program spawns
    dispatcher.enable(options.policy)
    atexit.register(_write_report, file, os.getpid())
    run = program.run_module if options.as_module else program.run_script
    run(options.program, options.arguments)
    return 0


def _report_file(options: argparse.Namespace) -> Optional[str]:
    file: Optional[str] = options.report
    if file is None or file == "-":
        return file
    rank = os.environ.get("RANK")
    if rank is not None:
        stem, suffix = os.path.splitext(file)
        file = f"{stem}.rank{rank}{suffix}"
    folder = os.path.dirname(os.path.abspath(file))
    if os.path.isdir(file) or not os.access(folder, os.W_OK):
        options.parser.error(f"argument --report: cannot write a file at {options.report!r}")
    return os.path.abspath(file)


def _write_report(file: Optional[str], process: int) -> None:
    if os.getpid() != process:
        return  # a forked child that came to its own end
    report = dispatcher.report()
    try:
        if file is None:
            print(report, file=sys.stderr)
        elif file == "-":
            print(json.dumps(report.as_dict()))
        else:
            Path(file).write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    except OSError as fault:
        print(f"sdpa-guard: the report could not be written: {fault}", file=sys.stderr)
