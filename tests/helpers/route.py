"""A way of calling attention: one row of the README's table, and its test under both doors."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Callable, Optional

import torch

import sdpa_guard
from sdpa_guard import LIMITS, Report, SDPAGuard

#: Lowered bounds: every call of more than two batch entries must be split.
LOWERED = tuple(
    dataclasses.replace(limit, bound=2) for limit in LIMITS if limit.id in ("F2b", "E1")
)
DEVICE_TYPES = ("cpu", "meta")

Tensors = tuple[torch.Tensor, ...]


def guard() -> SDPAGuard:
    return SDPAGuard(limits=LOWERED, device_types=DEVICE_TYPES)


@contextlib.contextmanager
def scoped() -> Iterator[Report]:
    with guard() as opened:
        yield opened.report


@contextlib.contextmanager
def process_wide() -> Iterator[Report]:
    sdpa_guard.enable(limits=LOWERED, device_types=DEVICE_TYPES)
    try:
        yield sdpa_guard.report()
    finally:
        sdpa_guard.disable()


DOORS = (scoped, process_wide)


@dataclasses.dataclass(frozen=True)
class Route:
    name: str
    run: Callable[[], Tensors]
    #: How many of its attention calls the scoped guard splits.
    split: int
    #: How many the process-wide guard splits; as many unless given.
    split_process_wide: Optional[int] = None
    #: What the table says in place of "yes" or "no", for each door.
    scoped: str = ""
    process_wide: str = ""

    def splits(self, door: Callable[..., object]) -> int:
        if door is process_wide and self.split_process_wide is not None:
            return self.split_process_wide
        return self.split

    def row(self) -> tuple[str, str, str]:
        """The name, and what each door sees, as the README has it."""
        seen = ["yes" if self.splits(door) else "no" for door in DOORS]
        return self.name, self.scoped or seen[0], self.process_wide or seen[1]
