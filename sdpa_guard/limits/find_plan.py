"""The plan for a call: the fewest balanced chunks that bring every limit inside.

The search looks at the limits that the whole call is over, whose counts shrink with the chunk. Then
the plan is judged: every distinct chunk of it against every limit, because not all counts shrink
with the chunk. A block of one row (E12) can appear in a chunk only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Optional

from .axis_cuts import Cuts, cuts_of
from .backends import rules_of
from .bisection import largest
from .call import AXES, BATCH, CONTIGUOUS, ROWS, TENSORS, Axis, Call, Copied
from .findings import exceeded
from .limit import Limit
from .plan import Plan, chunks, copy
from .releases import Release
from .rounding import divide_up

#: A plan of more calls is refused: their launches alone would take longer than anybody waits.
_MOST_CALLS = 2**20
#: Calls that are held against the limits in one search, some ten microseconds each; a search that
#: needs more ends with the best plan it has.
_MOST_LOOKS = 1000
#: How many further numbers of row chunks are tried where a plan fails its judgement.
_MOST_TRIES = 8


def cure(call: Call, limits: Sequence[Limit], releases: tuple[Release, ...]) -> Optional[Plan]:
    """The plan for a call that is over some of the limits, or None where nothing cures it.

    A split alone is preferred, along the batch while one entry fits, else over the axes together;
    then copies of as few tensors as help, alone or with a split. Limits that nothing cures are
    left aside, but no chunk may be over one that the call is not over.
    """
    return _Search(call, limits, releases).plan()


class _Search:
    """One search for a plan."""

    def __init__(self, call: Call, limits: Sequence[Limit], releases: tuple[Release, ...]) -> None:
        self._call = call
        self._releases = releases
        uncured = exceeded(call, [limit for limit in limits if not limit.cures], releases)
        set_aside = [finding.limit for finding in uncured]
        #: The limits that a plan has to bring inside.
        self._limits = [limit for limit in limits if limit not in set_aside]
        #: Those of ``_limits`` that the call being split is over.
        self._over: list[Limit] = []
        #: One release for each distinct set of rules about those.
        self._differing = releases
        self._looks = 0

    def plan(self) -> Optional[Plan]:
        for copies in self._copies():
            call = self._call.with_copies(copies)
            self._over = [limit for limit in self._limits if limit.counted(call) > limit.bound]
            self._differing = _differing(self._releases, self._over)
            for split in self._splits(call):
                if self._is_safe(split, call):
                    return copy(self._call, copies, split) if copies else split
        return None

    def _copies(self) -> Iterator[tuple[Copied, ...]]:
        """The tensors whose copies leave nothing that only a copy cures, the fewest first."""
        strided = [tensor for tensor in TENSORS if not self._call.is_contiguous(tensor)]
        by_stride = [limit for limit in self._limits if limit.cures == (CONTIGUOUS,)]
        for count in range(len(strided) + 1):
            for tensors in itertools.combinations(strided, count):
                if not exceeded(self._call.with_copies(tensors), by_stride, self._releases):
                    yield tensors

    def _splits(self, call: Call) -> Iterator[Optional[Plan]]:
        """Plans to judge, the best first; None is the call as it is."""
        over = exceeded(call, self._over, self._releases)
        if not over:
            yield None
            return
        cures = [cure for finding in over for cure in finding.limit.cures]
        axes = tuple(
            [axis for axis in AXES if axis in cures and not (axis == ROWS and call.is_causal)]
        )
        numbers = self._fewest(call, axes)
        for _ in range(_MOST_TRIES):
            if numbers is None or _product(call, numbers) > _MOST_CALLS:
                return
            yield _nest(call, numbers)
            row_cuts = cuts_of(call, ROWS)
            if ROWS not in numbers or numbers[ROWS] >= row_cuts.most():
                return
            numbers = {**numbers, ROWS: numbers[ROWS] + 1}

    def _is_safe(self, plan: Optional[Plan], call: Call) -> bool:
        return not any(
            exceeded(chunk, self._limits, self._releases) for chunk in chunks(plan, call)
        )

    def _load(self, chunk: Call) -> float:
        """The largest count as a share of its bound; of no interest where it is not over 1."""
        self._looks += 1
        over = exceeded(chunk, self._over, self._differing)
        # torch.compile cannot trace max(..., default=...).
        return max([0.0, *[finding.ratio for finding in over]])

    def _fewest(self, call: Call, axes: tuple[Axis, ...]) -> Optional[dict[Axis, int]]:
        """The number of the cut along each axis."""
        if BATCH in axes:
            number = self._coarsest(call, cuts_of(call, BATCH))
            if number is not None:
                return {BATCH: number}
        return self._together(call, axes, _MOST_CALLS + 1)

    def _together(
        self, call: Call, axes: tuple[Axis, ...], limit: int
    ) -> Optional[dict[Axis, int]]:
        """The cuts along each axis with the fewest chunks in all, under ``limit``.

        On a tie there are more chunks along the earlier axis.
        """
        if not axes:
            return {} if limit > 1 and self._load(call) <= 1 else None
        # The last axis is chosen first, so that the rest of the search is left to earlier ones.
        *earlier, axis = axes
        cuts = cuts_of(call, axis)
        number = self._coarsest(_finest(call, earlier), cuts)
        best = None
        while number is not None and cuts.chunks(number) < limit and self._looks < _MOST_LOOKS:
            length, parts = cuts.largest(number), cuts.chunks(number)
            found = self._together(call.take(axis, length), tuple(earlier), divide_up(limit, parts))
            if found is not None and _product(call, found) * parts < limit:
                best = {**found, axis: number}
                limit = _product(call, best)
            # The next cut whose largest chunk is smaller.
            number = cuts.fewest(length - 1) if length > 1 else None
        return best

    def _coarsest(self, call: Call, cuts: Cuts) -> Optional[int]:
        """The coarsest cut along one axis whose largest chunk fits; None where none does."""

        def is_over(number: int) -> bool:
            return self._load(call.take(cuts.axis, cuts.largest(number))) > 1

        over, fits = 0, cuts.most() + 1
        # Most counts grow with the axis: the largest chunk is near where the load comes down to 1.
        near = int(call.length(cuts.axis) / max(self._load(call), 1.0))
        guess = cuts.fewest(max(near, 1))
        for number in (guess, guess - 1, guess + 1):
            if over < number < fits:
                over, fits = (number, fits) if is_over(number) else (over, number)
        found = largest(is_over, over, fits) + 1
        return found if found <= cuts.most() else None


def _differing(releases: tuple[Release, ...], limits: list[Limit]) -> tuple[Release, ...]:
    """Of releases with the same of these limits and the same backends' rules, the first."""
    found: list[Release] = []
    seen: list[tuple[int, list[bool]]] = []
    for release in releases:
        judges = (rules_of(release), [limit.affects(release) for limit in limits])
        if judges not in seen:
            seen.append(judges)
            found.append(release)
    return tuple(found)


def _finest(call: Call, axes: Sequence[Axis]) -> Call:
    """The smallest chunk along these axes."""
    for axis in axes:
        call = call.take(axis, 1)
    return call


def _product(call: Call, numbers: dict[Axis, int]) -> int:
    product = 1
    for axis, number in numbers.items():
        product *= cuts_of(call, axis).chunks(number)
    return product


def _nest(call: Call, numbers: dict[Axis, int]) -> Optional[Plan]:
    """The plan with these cuts, the batch outermost."""
    plan = None
    for axis in reversed(AXES):
        if axis in numbers and numbers[axis] > 1:
            plan = Plan(axis, cuts_of(call, axis).sizes(numbers[axis]), plan)
    return plan
