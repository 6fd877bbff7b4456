"""``probe``: are the limits on this GPU where the registry says?"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from pathlib import Path

from ..limits.registry import LIMITS
from ..limits.releases import RUNNING_TORCH
from ..probing.gpu import NoGPUError, find_gpu
from ..probing.runner import probe
from ..probing.savefile import SaveFile, SaveFileError
from ..probing.shapes import shapes
from .argument_parser import Commands, add_command, fraction, say


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "probe",
        _act,
        does="measure the limits' boundaries on this GPU, without and with the guard, each shape "
        "in a process of its own",
        example="--limit F1 --save measured.json",
    )
    parser.add_argument(
        "--limit",
        metavar="ID",
        action="append",
        choices=[limit.id for limit in LIMITS],
        help="only this limit; may be given again (default: each of `sdpa-guard limits`)",
    )
    parser.add_argument(
        "--max-memory",
        metavar="GIB",
        type=_positive,
        default=math.inf,
        help="GPU memory that a step may take (default: what is free)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only limits that this torch has, one shape each, at and just over the bound",
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="keep measurements in FILE, and do not repeat those that are in it",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_positive,
        default=600.0,
        help="seconds after which a process is ended (default: 600)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _positive(text: str) -> float:
    number = fraction(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number greater than 0, not {text!r}")
    return number


def _act(options: argparse.Namespace) -> int:
    try:
        saved = SaveFile(Path(options.save) if options.save is not None else None)
    except SaveFileError as wrong:
        options.parser.error(f"argument --save: {wrong}")
    _end_in_order()
    limits = [limit for limit in LIMITS if options.limit is None or limit.id in options.limit]
    try:
        gpu = find_gpu()
        memory = min(gpu.free_gib, options.max_memory)
        work = shapes(limits, RUNNING_TORCH, memory, options.quick, gpu.dtype)
        outcome = probe(work, gpu.name, saved=saved, timeout=options.timeout)
    except (NoGPUError, SaveFileError) as fault:
        say(f"sdpa-guard probe: {fault}")
        return 1
    print(json.dumps(outcome.as_dict(), indent=2) if options.json else outcome)
    return 0 if outcome.is_good else 1


def _end_in_order() -> None:
    # A child left behind by a batch system's signal would hold the GPU.
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
