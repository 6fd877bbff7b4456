"""How one call becomes several."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Optional, Union

from .call import BATCH, CONTIGUOUS, HEADS, ROWS, Axis

_WORDS = {
    BATCH: ("batch entry", "batch entries"),
    HEADS: ("head", "heads"),
    ROWS: ("query row", "query rows"),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one call becomes several. ``len(plan)`` is the number of calls that reach torch.

    >>> from sdpa_guard import check
    >>> plan = check(400, 4, 10496, 128, torch_version="2.9.0").plan
    >>> plan.axis, plan.sizes, len(plan)
    ('batch', (200, 200), 2)
    """

    #: "batch", "heads" or "rows"; "contiguous" copies key and value and splits nothing.
    axis: Union[Axis, Literal["contiguous"]]
    #: The length of each chunk along the axis: batch entries, query heads, query rows.
    sizes: tuple[int, ...]
    #: How each chunk is split in turn, along a later axis.
    inner: Optional[Plan] = None

    def __len__(self) -> int:
        chunks = 1 if self.axis == CONTIGUOUS else len(self.sizes)
        return chunks * (len(self.inner) if self.inner else 1)

    def __str__(self) -> str:
        if self.axis == CONTIGUOUS:
            words = "key and value made contiguous"
        else:
            small, large = self.sizes[-1], self.sizes[0]
            size = f"{large}" if small == large else f"{small} or {large}"
            words = f"{len(self.sizes)} calls of {size} {_WORDS[self.axis][large > 1]}"
        join = "then" if self.axis == CONTIGUOUS else "each"
        return f"{words}, {join} {self.inner}" if self.inner else words

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; ``calls`` is ``len(plan)``."""
        inner = self.inner.as_dict() if self.inner else None
        return {"axis": self.axis, "sizes": list(self.sizes), "calls": len(self), "inner": inner}


def balanced(units: int, chunks: int, unit: int) -> tuple[int, ...]:
    """The lengths of that many chunks, larger ones first, differing by at most one unit."""
    size, larger = units // chunks, units % chunks  # torch.compile cannot trace divmod
    return ((size + 1) * unit,) * larger + (size * unit,) * (chunks - larger)
