"""The command: which rows to measure, and what to make of their figures."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import Callable

import torch

from . import calls, compiled, parts, peak_memory, splits, starts, steps
from .table import add_arguments, publish
from .timing import Result

ROWS: dict[str, Callable[[], list[Result]]] = {
    "other-call": calls.other_calls,
    "unsplit-call": calls.unsplit_call,
    "parts": parts.parts,
    "step": steps.training_steps,
    "compiled-step": compiled.compiled_steps,
    "split": splits.split,
    "by-hand": splits.hand_written,
    "peak-memory": peak_memory.peak,
    "plan": splits.plan,
    "chunks": splits.chunks_used,
    "import": starts.imports,
    "start-up": starts.start_up,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", metavar="ROW", nargs="*", help="one of: " + ", ".join(ROWS))
    add_arguments(parser)
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"argument ROW: {unknown[0]!r} must be among {', '.join(ROWS)}")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results: list[Result] = []
    for row in options.rows or ROWS:
        print(f"measuring {row}", file=sys.stderr, flush=True)
        results += ROWS[row]()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, 1 thread"
    publish(results, machine, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
