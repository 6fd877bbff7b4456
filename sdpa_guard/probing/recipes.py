"""How a call crosses each limit's bound: one of its sizes grows, the others are given."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from ..limits.bisection import largest
from ..limits.integer_ends import LARGEST_SIZE
from ..limits.limit import Limit
from .trial import Trial

#: A kernel works by tiles of up to so many rows; a limit counts the rows.
_TILE = 128


@dataclasses.dataclass(frozen=True)
class Around:
    """The trials just under, at and just over a bound."""

    under: tuple[Trial, ...]
    at: Trial
    over: Trial

    @property
    def all(self) -> tuple[Trial, ...]:
        return (*self.under, self.at, self.over)


class Recipe:
    """A family of calls, one for each size of one axis."""

    def __init__(
        self,
        axis: str,
        past: int = 1,
        unit: int = 1,
        dims: tuple[int, ...] = (64, 128),
        **facts: Any,
    ) -> None:
        #: The field of a trial that grows, and what it grows by.
        self.axis = axis
        self.unit = unit
        #: How many units past the last safe size the kernel fails for sure: limits err on the safe
        #: side by up to a tile, or an entry.
        self.past = past
        #: Head dims.
        self.dims = dims
        small = {"batch": 1, "kv_heads": 1, "seq_q": 8, "seq_k": 8, "backward": True}
        self.facts = {**small, **facts}

    def around(self, limit: Limit, head_dim: int, dtype: str) -> Optional[Around]:
        """The trials around the limit's bound; None where no size crosses it."""

        def trial(units: int) -> Trial:
            grown = {self.axis: units * self.unit, "head_dim": head_dim, "dtype": dtype}
            return Trial(limit=limit.id, **{**self.facts, **grown})

        def fits(units: int) -> bool:
            return limit.counted(trial(units).call) <= limit.bound

        fitting, over = 1, 2
        while fits(over) and over < LARGEST_SIZE:
            fitting, over = over, 2 * over
        if fits(over) or not fits(fitting):
            return None
        fitting = largest(fits, fitting, over)
        under = (trial(fitting - 1),) if fitting > 1 else ()
        return Around(under, trial(fitting), trial(fitting + self.past))


_WORKSPACE_DIMS = (64, 32, 80, 256)
_FORWARD: dict[str, Any] = {"backward": False}
_APART: dict[str, Any] = {"kv_head_stride": 2**22, "kv_row_stride": 512}

#: By the id of the limit; where there are several, the cheapest first.
RECIPES: dict[str, tuple[Recipe, ...]] = {
    "F1": (
        Recipe("batch", 2, dims=_WORKSPACE_DIMS, kv_heads=16, seq_q=1, seq_k=16),
        Recipe("batch", 2, dims=_WORKSPACE_DIMS, kv_heads=8, seq_q=1024, seq_k=128),
    ),
    "F1p": (
        Recipe("batch", dims=_WORKSPACE_DIMS, kv_heads=16, seq_q=1, seq_k=16),
        Recipe("batch", dims=_WORKSPACE_DIMS, kv_heads=8, seq_q=1024, seq_k=128),
    ),
    "F2b": (Recipe("batch"),),
    "F2h": (Recipe("kv_heads"), Recipe("kv_heads", group=2, seq_q=1, **_FORWARD)),
    # The offset is a batch entry's: it wraps where an entry starts past the bound.
    "F4a": (Recipe("batch", 2, dims=(8,), seq_q=2**17, **_FORWARD),),
    "F4b": (Recipe("batch", 2, dims=(8,), seq_q=2**17),),
    "E1": (Recipe("batch"),),
    "E2": (Recipe("batch", dropout_p=0.5),),
    "E3": (Recipe("batch", mask=True, mask_requires_grad=True),),
    "E4": (Recipe("kv_heads"),),
    "E5": (Recipe("seq_q", _TILE, seq_k=2**15, mask=True),),
    "E6": (Recipe("seq_q", _TILE, seq_k=2**16, mask=True, **_FORWARD),),
    "E7a": (Recipe("seq_q", _TILE, seq_k=2**16, dropout_p=0.5),),
    "E7b": (
        Recipe("batch", 2, seq_q=4096, seq_k=4096, dropout_p=0.5),
        Recipe("kv_heads", 2, seq_q=8192, seq_k=8192, dropout_p=0.5),
    ),
    # One head next to the other, as in a fused projection: rows are the largest stride.
    "E8": (
        Recipe(
            "seq_k",
            _TILE,
            seq_q=128,
            kv_head_stride=256,
            kv_row_stride=2048,
            focused=True,
            **_FORWARD,
        ),
    ),
    "E9f": (Recipe("kv_heads", **_APART, **_FORWARD),),
    "E9b": (Recipe("kv_heads", **_APART),),
    "E10": (
        Recipe("batch", 2, dims=(8,), kv_heads=2**15, seq_q=1, seq_k=2),
        Recipe("batch", 2, dims=(8,), seq_q=2**17, **_FORWARD),
    ),
    "E11": (Recipe("kv_head_stride", unit=8, kv_heads=2, kv_row_stride=512, **_FORWARD),),
    # Heads past the last whole block are written where other entries are.
    "E12": (
        Recipe(
            "kv_heads",
            unit=33,
            dims=(64,),
            seq_q=1,
            kv_head_stride=0,
            kv_row_stride=512,
            **_FORWARD,
        ),
    ),
    "C1": (
        Recipe("batch", seq_q=64, seq_k=64),
        Recipe("kv_heads", seq_q=64, seq_k=64),
    ),
}
