"""What a guard writes down of the calls it judges: counts, and a line for each shape and place.

It takes no lock, so that a signal handler can read it, or make calls, wherever it interrupts a
thread: each entry is one step of C, which nothing interrupts.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
from typing import Optional

from ..limits.call import Call
from ..limits.findings import Finding
from ..limits.plan import Plan
from .call_site import Site

#: The shapes that a report lists.
_MOST_LINES = 1000


class Counter:
    """A count that all threads may raise at once."""

    def __init__(self) -> None:
        self._count = itertools.count()
        #: Count one more.
        self.add = self._count.__next__

    @property
    def value(self) -> int:
        """How many were counted."""
        return int(repr(self._count)[len("count(") : -1])  # to ask it otherwise would count


@dataclasses.dataclass
class Line:
    """One shape at one call site, and how often it came."""

    #: The limit that the call uses most of; None where it meets none.
    fullest: Optional[Finding]
    plan: Optional[Plan] = None
    #: The plan was run; else the call was left as it was, or refused.
    split: bool = False
    calls: Counter = dataclasses.field(default_factory=Counter)

    def __str__(self) -> str:
        if self.fullest is None or not self.fullest.over:
            return "fits"
        if self.plan is None:
            return "unsplittable"
        return str(self.plan) if self.split else f"left; {self.plan} would fit"


class Ledger:
    """The entries of one guard, over all its scopes and threads."""

    def __init__(self) -> None:
        #: List the calls that are inside every bound, too.
        self.lists_every_call = False
        self.calls = Counter()
        self.split = Counter()
        self.chunks = Counter()
        self.unsplittable = Counter()
        self.over = Counter()
        self.lines: dict[tuple[Site, Call], Line] = {}
        #: For each limit a heap of one number.
        self._ratios: collections.defaultdict[str, list[float]]
        self._ratios = collections.defaultdict(lambda: [0.0])

    def measured(self, findings: tuple[Finding, ...]) -> None:
        """Keep the largest ratio of each limit."""
        for finding in findings:
            heapq.heappushpop(self._ratios[finding.limit.id], finding.ratio)

    def ratios(self) -> dict[str, float]:
        """The largest share of each limit's bound that any call used, by the limit's id."""
        return {limit: heap[0] for limit, heap in list(self._ratios.items())}

    def inside(self, site: Site, call: Call, fullest: Optional[Finding]) -> None:
        """List a call that is inside every bound; it is counted already."""
        self._list(site, call, Line(fullest))

    def split_up(self, site: Site, call: Call, fullest: Optional[Finding], plan: Plan) -> None:
        """Count a call that is about to be split."""
        self._list(site, call, Line(fullest, plan, split=True))
        self.split.add()
        self.over.add()

    def left(
        self, site: Site, call: Call, fullest: Optional[Finding], plan: Optional[Plan]
    ) -> None:
        """Count a call that is over a limit and was left as it is, or refused."""
        self._list(site, call, Line(fullest, plan))
        if plan is None:
            self.unsplittable.add()
        self.over.add()

    def _list(self, site: Site, call: Call, line: Line) -> None:
        # A run with ever new shapes must not fill the memory; its later ones are not listed.
        if (site, call) in self.lines or len(self.lines) < _MOST_LINES:
            self.lines.setdefault((site, call), line).calls.add()
