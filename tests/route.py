"""A way of calling attention: one row of the README's table, and its test."""

from __future__ import annotations

import dataclasses
from typing import Callable, Optional

import torch

from sdpa_guard import LIMITS, SDPAGuard

#: Lowered bounds: every call of more than two batch entries must be split.
LOWERED = tuple(
    dataclasses.replace(limit, bound=2) for limit in LIMITS if limit.id in ("F2b", "E1")
)
DEVICE_TYPES = ("cpu", "meta")

Tensors = tuple[torch.Tensor, ...]


def guard() -> SDPAGuard:
    return SDPAGuard(limits=LOWERED, device_types=DEVICE_TYPES)


@dataclasses.dataclass(frozen=True)
class Route:
    name: str
    run: Callable[[], Tensors]
    #: How many of its attention calls the scoped guard splits.
    split: int
    #: How many the process-wide guard splits; as many unless given.
    process_wide: Optional[int] = None
    #: What to do where the scoped guard sees none.
    instead: str = ""
    #: What to do where the process-wide guard sees none.
    instead_process_wide: str = ""
