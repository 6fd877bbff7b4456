"""A model of the kernels behind torch's attention: their own arithmetic, and where it goes wrong.

Written from the kernels' sources, never from the package's registry: see README.md beside this.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import (
    efficient_backward,
    efficient_forward,
    flash_backward,
    flash_forward,
    host,
)
from .fault import Fault
from .launch import Launch, Mask, Strides, contiguous, dense, padded_for_flash, sequence_first
from .lines import Line, line_of
from .mask import bias_strides

__all__ = [
    "Fault",
    "Launch",
    "Line",
    "Mask",
    "Strides",
    "contiguous",
    "dense",
    "faults",
    "line_of",
    "sequence_first",
]


def faults(launch: Launch, backend: str, line: Line) -> list[Fault]:
    """Everything that goes wrong when the backend, "flash" or "efficient", runs the launch.

    Whether torch would give the launch to that backend is not asked.
    """
    return list(_PARTS[backend](launch, line))


def _flash(launch: Launch, line: Line) -> Iterator[Fault]:
    launch = padded_for_flash(launch)
    yield from host.flash_faults(launch, line)
    yield from flash_forward.faults(launch, line)
    if launch.needs_backward:
        yield from flash_backward.faults(launch, line)


def _efficient(launch: Launch, line: Line) -> Iterator[Fault]:
    bias = bias_strides(launch)
    yield from host.efficient_faults(launch, line, bias)
    yield from efficient_forward.faults(launch, line, bias)
    if launch.needs_backward:
        yield from efficient_backward.faults(launch, line, bias)


_PARTS = {"flash": _flash, "efficient": _efficient}
