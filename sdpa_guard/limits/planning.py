"""The split of one call: the fewest balanced chunks that bring every applying limit inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable, Optional

from .bisection import largest
from .call import AXES, BATCH, CONTIGUOUS, ROWS, Axis, Call
from .findings import exceeded
from .limit import Limit
from .plan import Plan, balanced
from .releases import Release

#: The largest count of a call as a share of its bound; of no interest where it is not over 1.
Load = Callable[[Call], float]
#: The axes along which a split lowers what a call is over.
Cures = Callable[[Call], frozenset[str]]

#: A plan of more calls is refused: their launches alone would take longer than anybody waits.
_MOST_CALLS = 2**20


def cure(call: Call, limits: Iterable[Limit], releases: tuple[Release, ...]) -> Optional[Plan]:
    """The plan for a call that is over some of the limits, or None where nothing cures it."""
    # No chunk is over a limit that neither the whole call nor its contiguous copy is over.
    copied = call.with_contiguous_kv()
    in_reach = [
        limit
        for limit in limits
        if limit.counted(call) > limit.bound or limit.counted(copied) > limit.bound
    ]

    def load(chunk: Call) -> float:
        # torch.compile cannot trace max(..., default=...).
        return max([0.0, *[finding.ratio for finding in exceeded(chunk, in_reach, releases)]])

    def cures(whole: Call) -> frozenset[str]:
        over = exceeded(whole, in_reach, releases)
        return frozenset([cure for finding in over for cure in finding.limit.cures])

    return fewest(call, cures, load)


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


def _search(
    call: Call, axes: tuple[Axis, ...], load: Load, limit: int
) -> Optional[dict[Axis, int]]:
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


def _least_chunks(call: Call, earlier: tuple[Axis, ...], axis: Axis, load: Load) -> Optional[int]:
    """The fewest chunks along the axis with which the earlier axes, split wholly, could fit."""
    for other in earlier:
        call = call.take(other, 1)
    return _fewest_along(call, axis, load)


def _fewest_along(call: Call, axis: Axis, load: Load) -> Optional[int]:
    """The fewest chunks along one axis whose largest fits; None where the smallest does not."""
    units, least = call.units(axis), call.least(axis)

    def fits(size: int) -> bool:
        return load(call.take(axis, size)) <= 1

    fitting, over = least - 1, units + 1
    # Most counts grow with the axis: the largest chunk is near where the load comes down to 1.
    near = int(units / max(load(call), 1.0))
    for size in (near, near + 1, near - 1):
        if fitting < size < over:
            fitting, over = (size, over) if fits(size) else (fitting, size)
    fitting = largest(fits, fitting, over)
    if fitting < least:
        return None
    chunks = -(-units // fitting)
    return chunks if units // chunks >= least else None


def _product(counts: dict[Axis, int]) -> int:
    product = 1
    for count in counts.values():
        product *= count
    return product


def _nest(call: Call, counts: dict[Axis, int]) -> Optional[Plan]:
    """The plan with that many chunks along each axis, the batch outermost; None for too many."""
    if _product(counts) > _MOST_CALLS:
        return None
    plan = None
    for axis in reversed(AXES):
        chunks = counts.get(axis, 1)
        if chunks > 1:
            plan = Plan(axis, balanced(call.units(axis), chunks, call.unit(axis)), plan)
    return plan
