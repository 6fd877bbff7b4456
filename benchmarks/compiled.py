"""What the guard adds to a compiled training step, one process for each way of guarding it.

``enable`` has torch compile anew, so the ways cannot take turns in one process.
``python -m benchmarks.compiled GUARD`` is one of them: for each line that it reads it takes a turn,
and says the seconds of a step.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any, Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from .calls import process_wide, scoped
from .timing import Result, ratio, take_turns

STEPS, TURNS = 10, 41
GUARDS: dict[str, Callable[[], Any]] = {
    "unguarded": contextlib.nullcontext,
    "scoped": scoped,
    "process-wide": process_wide,
}


class Model(nn.Module):
    """Three layers of self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList([nn.Linear(128, 384) for _ in range(3)])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for projection in self.projections:
            query, key, value = (
                part.unflatten(-1, (4, 32)).transpose(1, 2)
                for part in projection(hidden).chunk(3, -1)
            )
            attended = scaled_dot_product_attention(query, key, value)
            hidden = hidden + attended.transpose(1, 2).flatten(2)
        return hidden


def compiled_steps() -> list[Result]:
    """Training steps compiled by inductor."""
    with contextlib.ExitStack() as stack:
        seconds = {name: _process(name, stack) for name in GUARDS}
        taken = take_turns(seconds, TURNS)
    return [
        Result("compiled-step", what, "unguarded", ratio(taken, what, "unguarded"), "x", 1.01)
        for what in ("scoped", "process-wide")
    ]


def _process(name: str, stack: contextlib.ExitStack) -> Callable[[], float]:
    command = [sys.executable, "-m", "benchmarks.compiled", name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str] = stack.enter_context(subprocess.Popen(command, **pipes))  # type: ignore[call-overload]
    stack.callback(process.kill)

    def turn() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        print(file=process.stdin, flush=True)
        return float(process.stdout.readline())

    return turn


def main(name: str) -> None:
    """Take the turns that are asked for."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.compile(Model())
    data = torch.randn(16, 64, 128)

    def step() -> None:
        model(data).square().mean().backward()

    with GUARDS[name]():
        for _ in range(3):
            step()
        for _ in sys.stdin:
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            print((time.perf_counter() - start) / STEPS, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
