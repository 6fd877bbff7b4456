"""The split of one call: the fewest balanced chunks that bring every applying limit inside."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

from .call import AXES, BATCH, CONTIGUOUS, HEADS, ROWS, Call

#: The largest count of a call as a share of its bound; of no interest where it is not over 1.
Load = Callable[[Call], float]
#: The axes along which a split lowers what a call is over.
Cures = Callable[[Call], frozenset[str]]

#: A plan of more calls is none: their launches alone would take longer than anybody waits.
_MOST_CALLS = 2**20

_WORDS = {
    BATCH: ("batch entry", "batch entries"),
    HEADS: ("head", "heads"),
    ROWS: ("query row", "query rows"),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one call becomes several. ``len(plan)`` is the number of calls that reach torch."""

    #: "batch", "heads" or "rows"; "contiguous" copies key and value and splits nothing.
    axis: str
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


def fewest(call: Call, cures: Cures, load: Load) -> Optional[Plan]:
    """The plan with the fewest chunks, or None where nothing cures the call.

    Along the batch while one entry fits; else over the axes together, on a tie with more chunks
    along the earlier axis; with key and value made contiguous only where no split is enough.
    ``load`` must never grow when a chunk gets smaller.
    """
    plan = _split(call, cures, load)
    if plan is not None:
        return plan
    copied = call.with_contiguous_kv()
    if load(copied) <= 1:
        return Plan(CONTIGUOUS, ())
    plan = _split(copied, cures, load)
    return plan and Plan(CONTIGUOUS, (), plan)


def balanced(units: int, chunks: int, unit: int) -> tuple[int, ...]:
    """The lengths of that many chunks, larger ones first, differing by at most one unit."""
    size, larger = units // chunks, units % chunks  # torch.compile cannot trace divmod
    return ((size + 1) * unit,) * larger + (size * unit,) * (chunks - larger)


def _split(call: Call, cures: Cures, load: Load) -> Optional[Plan]:
    lower = cures(call)
    axes = tuple(axis for axis in AXES if axis in lower and not (axis == ROWS and call.is_causal))
    if BATCH in axes:
        chunks = _fewest_along(call, BATCH, load)
        if chunks is not None:
            return _nest(call, {BATCH: chunks})
    counts = _search(call, axes, load, _more_than_any_plan(call))
    return None if counts is None else _nest(call, counts)


def _more_than_any_plan(call: Call) -> int:
    most = 1
    for axis in AXES:
        most *= call.units(axis)
    return most + 1


def _search(call: Call, axes: tuple[str, ...], load: Load, limit: int) -> Optional[dict[str, int]]:
    """The chunks along each axis, their product the smallest and under ``limit``."""
    if not axes:
        return {} if limit > 1 and load(call) <= 1 else None
    # The last axis is chosen first, so that the rest of the search is left to earlier ones.
    *earlier, axis = axes
    least = _least_chunks(call, tuple(earlier), axis, load)
    if least is None:
        return None
    best = None
    units, chunks = call.units(axis), least
    while chunks < min(limit, units + 1) and units // chunks >= call.least(axis):
        size = -(-units // chunks)
        found = _search(call.take(axis, size), tuple(earlier), load, -(-limit // chunks))
        if found is not None and _product(found) * chunks < limit:
            best = {**found, axis: chunks}
            limit = _product(best)
        # The next count whose largest chunk is smaller.
        chunks = units + 1 if size == 1 else -(-units // (size - 1))
    return best


def _least_chunks(call: Call, earlier: tuple[str, ...], axis: str, load: Load) -> Optional[int]:
    """The fewest chunks along the axis with which the earlier axes, split wholly, could fit."""
    for other in earlier:
        call = call.take(other, 1)
    return _fewest_along(call, axis, load)


def _fewest_along(call: Call, axis: str, load: Load) -> Optional[int]:
    """The fewest chunks along one axis whose largest fits; None where the smallest does not."""
    units, least = call.units(axis), call.least(axis)
    fitting, over = least - 1, units + 1
    # Most counts grow with the axis: the largest chunk is near where the load comes down to 1.
    near = int(units / max(load(call), 1.0))
    for size in (near, near + 1, near - 1):
        if fitting < size < over:
            fitting, over = _narrow(call, axis, load, size, fitting, over)
    while over - fitting > 1:
        fitting, over = _narrow(call, axis, load, (fitting + over) // 2, fitting, over)
    if fitting < least:
        return None
    chunks = -(-units // fitting)
    return chunks if units // chunks >= least else None


def _narrow(
    call: Call, axis: str, load: Load, size: int, fitting: int, over: int
) -> tuple[int, int]:
    """The largest size known to fit, and the smallest known not to, after one more was tried."""
    return (size, over) if load(call.take(axis, size)) <= 1 else (fitting, size)


def _product(counts: dict[str, int]) -> int:
    product = 1
    for count in counts.values():
        product *= count
    return product


def _nest(call: Call, counts: dict[str, int]) -> Optional[Plan]:
    """The plan with that many chunks along each axis, the batch outermost; None for too many."""
    if _product(counts) > _MOST_CALLS:
        return None
    plan = None
    for axis in reversed(AXES):
        chunks = counts.get(axis, 1)
        if chunks > 1:
            plan = Plan(axis, balanced(call.units(axis), chunks, call.unit(axis)), plan)
    return plan
