"""The command line: ``python -m sdpa_guard`` and ``sdpa-guard``."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Optional

from sdpa_guard_autoload import PTH_LINE, VARIABLE

from . import dispatcher, program
from .settings import POLICIES

USAGE_ERROR = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End with one line on stderr and status 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}\n")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command; returns its exit status. A usage error exits with status 2."""
    parser = _Parser(prog="sdpa-guard", description="Keep attention calls within their kernels.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_autoload(commands)
    options = parser.parse_args(arguments)
    status: int = options.act(options)
    return status


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:
    run = commands.add_parser(
        "run",
        help="run a program with every attention call guarded",
        description="Run a program as python would, with every attention call of it guarded.",
        epilog="example: sdpa-guard run --report report.json train.py --batch-size 512",
    )
    run.add_argument(
        "--policy", choices=POLICIES, default="split", help="what to do with a call over a limit"
    )
    run.add_argument(
        "--report",
        metavar="FILE",
        help="write the report as JSON to FILE, or - for standard output; "
        "under torchrun each process writes one of its own, with its rank in the name",
    )
    run.add_argument("-m", action="store_true", dest="as_module", help="run a module, as python -m")
    run.add_argument("program", metavar="SCRIPT", help="the script, or with -m the module")
    run.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(act=_run, parser=run)


def _add_autoload(commands: argparse._SubParsersAction[_Parser]) -> None:
    autoload = commands.add_parser(
        "autoload",
        help=f"let {VARIABLE} reach every program on torch before 2.5 too",
        description=f"Let {VARIABLE} reach every program of this environment on torch before 2.5 "
        "too: writes a .pth file of one line. Later releases need none.",
        epilog="example: sdpa-guard autoload --remove",
    )
    autoload.add_argument("--remove", action="store_true", help="take the file away again")
    autoload.set_defaults(act=_autoload, parser=autoload)


def _autoload(options: argparse.Namespace) -> int:
    file = Path(sysconfig.get_path("purelib"), "sdpa_guard_autoload.pth")
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


def _run(options: argparse.Namespace) -> int:
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
