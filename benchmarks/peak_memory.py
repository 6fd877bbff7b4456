"""The peak memory of a split, each measured in a process of its own; Linux only.

``python -m benchmarks.memory STEP CHUNKS`` is such a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from .splits import by_hand, inputs, scope
from .timing import Result, spread

#: 64 MiB for each of query, key, value and the output.
BATCH = 2048
TURNS = 3
#: malloc gives freed tensors back to the system at once, so that the system's peak is the real one.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
STEPS = ("training", "inference")


def peak() -> list[Result]:
    """The peak of the whole step, its inputs and gradients included."""
    results = []
    for step, reach in (("training", 1.15), ("inference", 1.05)):
        whole = _measure(step, "whole", 1)
        for chunks in (2, 16, 64):
            figure = spread([a / b for a, b in zip(_measure(step, "split", chunks), whole)])
            # A kernel makes its output anew: beside the result there is always one chunk.
            floor = 1 + 1 / (4 * chunks) if step == "inference" else None
            what = f"{step}, {chunks} chunks"
            results.append(
                Result("peak-memory", what, "the whole call", figure, "x", reach, floor=floor)
            )
        figure = spread([a / b for a, b in zip(_measure(step, "hand", 64), whole)])
        what = f"{step}, 64 chunks by hand"
        results.append(Result("peak-memory", what, "the whole call", figure, "x"))
    return results


def _measure(step: str, how: str, chunks: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.memory", step, how, str(chunks)]
    environment = {**os.environ, **MALLOC}
    return [
        float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
        for _ in range(TURNS)
    ]


def main(step: str, how: str, chunks: int) -> None:
    """Print the bytes by which the step raises the peak of this process."""
    torch.set_num_threads(1)
    _step(step, how, chunks, batch=64)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak()
    _step(step, how, chunks, BATCH)
    print(_peak() - before)


def _step(step: str, how: str, chunks: int, batch: int) -> None:
    tensors = inputs(batch)
    with scope(batch, chunks)(), torch.set_grad_enabled(step == "training"):
        if how == "hand":
            out = by_hand(*tensors, size=batch // chunks)
        else:
            out = scaled_dot_product_attention(*tensors)
    if step == "training":
        out.backward(torch.randn_like(out))


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
