"""How one call becomes several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, Optional, Union

from .call import BATCH, CONTIGUOUS, HEADS, ROWS, Axis, Call, Copied

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

    #: "batch", "heads" or "rows"; "contiguous" copies some tensors and splits nothing.
    axis: Union[Axis, Literal["contiguous"]]
    #: The length of each chunk along the axis: batch entries, query heads, query rows.
    sizes: tuple[int, ...]
    #: How each chunk is split in turn, along a later axis.
    inner: Optional[Plan] = None
    #: Of query, key and value, those that are copied into contiguous memory before.
    copies: tuple[Copied, ...] = ()
    #: The memory that the copies take, in bytes.
    copied_bytes: int = 0

    def __len__(self) -> int:
        chunks = 1 if self.axis == CONTIGUOUS else len(self.sizes)
        return chunks * (len(self.inner) if self.inner else 1)

    def __str__(self) -> str:
        if self.axis == CONTIGUOUS:
            *first, last = self.copies
            named = f"{', '.join(first)} and {last}" if first else last
            words = f"{named} made contiguous ({gib(self.copied_bytes)})"
        else:
            small, large = min(self.sizes), max(self.sizes)
            size = f"{large}" if small == large else f"{small} or {large}"
            words = f"{len(self.sizes)} calls of {size} {_WORDS[self.axis][large > 1]}"
        join = "then" if self.axis == CONTIGUOUS else "each"
        return f"{words}, {join} {self.inner}" if self.inner else words

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; ``calls`` is ``len(plan)``."""
        plain: dict[str, Any] = {
            "axis": self.axis,
            "sizes": list(self.sizes),
            "calls": len(self),
            "inner": self.inner.as_dict() if self.inner else None,
        }
        if self.copies:
            plain["copies"] = list(self.copies)
            plain["copied_gib"] = self.copied_bytes / 2**30
        return plain


def gib(count: int) -> str:
    """So many bytes for people to read."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 // 10 else f"{count / 2**20:.1f} MiB"


def copy(call: Call, tensors: tuple[Copied, ...], inner: Optional[Plan]) -> Plan:
    """The plan that copies these tensors of the call first."""
    elements = 0
    for tensor in tensors:
        batch, heads, length, dim = call.shape(tensor)
        elements += batch * call.lanes * heads * length * dim
    return Plan(CONTIGUOUS, (), inner, tensors, elements * call.dtype.itemsize)


def chunks(plan: Optional[Plan], call: Call) -> Iterator[Call]:
    """Each distinct chunk of the call, as torch will get it."""
    if plan is None:
        yield call
    elif plan.axis == CONTIGUOUS:
        yield from chunks(plan.inner, call.with_copies(plan.copies))
    else:
        for size in sorted(set(plan.sizes), reverse=True):
            yield from chunks(plan.inner, call.take(plan.axis, size))
