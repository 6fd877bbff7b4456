"""``run``: a program, guarded."""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
from pathlib import Path
from typing import Callable, Optional

from sdpa_guard_autoload import VARIABLE
from sdpa_guard_autoload import policy as policy_of_variable

from ..guarding import door_process_wide
from ..guarding.options import POLICIES, Policy
from .argument_parser import Commands, Parser, add_command, say
from .as_python_would import run_module, script


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
        "--policy",
        choices=POLICIES,
        help=f"what to do with a call over a limit, whatever {VARIABLE} says "
        f"(default: what {VARIABLE} says, split if it is not set)",
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
    rest = parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments"
    )
    rest.required = False  # argparse says so of every positional argument
    parser.usage = "%(prog)s [-h] [--policy POLICY] [--report FILE] [-m] SCRIPT [ARGS ...]"


def act(options: argparse.Namespace) -> int:
    """Run the program; returns if it does. Raises what it raises."""
    start = _program(options)
    file = _report_file(options)
    policy = _policy(options)
    if policy is None:
        say(f"sdpa-guard run: nothing is guarded, as {VARIABLE}={os.environ[VARIABLE]} says")
    else:
        os.environ[VARIABLE] = policy  # for the processes that the program spawns
        door_process_wide.enable(policy)
    if policy is not None or file is not None:
        atexit.register(_write_report, file, os.getpid())
    start()
    return 0


def _program(options: argparse.Namespace) -> Callable[[], None]:
    parser: Parser = options.parser
    if options.as_module:
        return functools.partial(run_module, options.program, options.arguments)
    if not os.path.exists(options.program):
        parser.error(f"argument SCRIPT: no such file: {options.program!r}")
    try:
        return script(options.program, options.arguments)
    except OSError as fault:
        parser.error(f"argument SCRIPT: cannot be read: {fault}")


def _policy(options: argparse.Namespace) -> Optional[Policy]:
    """The policy that was asked for; None where the variable asks for no guard."""
    if options.policy is not None:
        asked: Policy = options.policy
        return asked
    parser: Parser = options.parser
    value = os.environ.get(VARIABLE, "").strip()
    try:
        return policy_of_variable(value) if value else POLICIES[0]
    except ValueError as wrong:
        parser.error(f"without --policy, {wrong}")


def _report_file(options: argparse.Namespace) -> Optional[str]:
    file: Optional[str] = options.report
    if file == "":
        options.parser.error("argument --report: a file's name cannot be empty")
    if file is None or file == "-":
        return file
    rank = os.environ.get("RANK")
    if rank is not None:
        stem, suffix = os.path.splitext(file)
        file = f"{stem}.rank{rank}{suffix}"
    folder = os.path.dirname(os.path.abspath(file))
    wanted = file if os.path.exists(file) else folder
    if os.path.isdir(file) or not os.path.isdir(folder) or not os.access(wanted, os.W_OK):
        options.parser.error(f"argument --report: cannot write a file at {options.report!r}")
    return os.path.abspath(file)


def _write_report(file: Optional[str], process: int) -> None:
    if os.getpid() != process:
        return  # a forked child that came to its own end
    report = door_process_wide.report()
    try:
        if file is None:
            say(str(report))
        elif file == "-":
            print(json.dumps(report.as_dict()), flush=True)
        else:
            Path(file).write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    except (OSError, ValueError) as fault:  # ValueError: the program has closed the stream
        say(f"sdpa-guard: the report could not be written: {fault}")
