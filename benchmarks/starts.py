"""What the package costs at the start of a process."""

from __future__ import annotations

import os
import subprocess
import sys

from .timing import Result, spread

TURNS = 15
_IMPORT = """
import time, torch
start = time.perf_counter()
import sdpa_guard
print(time.perf_counter() - start)
"""
# What torch does at the end of its own import, done by hand so that it can be timed.
_ENTRY_POINT = """
import time
start = time.perf_counter()
import torch
imported = time.perf_counter()
import sdpa_guard_autoload
sdpa_guard_autoload.activate()
print(imported - start, time.perf_counter() - imported)
"""


def imports() -> list[Result]:
    """``import sdpa_guard`` after torch."""
    runs = [_run(_IMPORT) for _ in range(TURNS + 1)][1:]
    figure = spread([1e3 * seconds for (seconds,) in runs])
    return [Result("import", "import sdpa_guard, after torch", "", figure, "ms", 20)]


def start_up() -> list[Result]:
    """What ``import torch`` calls of ours where ``SDPA_GUARD`` is unset.

    Not measurable: less than the quartiles of ``import torch`` are apart.
    """
    runs = [_run(_ENTRY_POINT, TORCH_DEVICE_BACKEND_AUTOLOAD="0") for _ in range(TURNS + 1)][1:]
    torch_takes, ours = (spread([1e3 * seconds for seconds in times]) for times in zip(*runs))
    noise = torch_takes.high - torch_takes.low
    against = f"the noise of import torch ({torch_takes.median:.0f} ms)"
    return [Result("start-up", "the entry point, SDPA_GUARD unset", against, ours, "ms", noise)]


def _run(code: str, **variables: str) -> list[float]:
    # An installed package has its bytecode: let Python keep it here as well.
    unset = ("SDPA_GUARD", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", code]
    environment.update(variables)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return [float(word) for word in done.stdout.split()]
