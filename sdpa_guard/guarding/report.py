"""What the guard saw, what it split, and where."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Optional

from ..limits.call import Call
from ..limits.findings import Finding
from ..limits.plan import Plan
from ..limits.text_table import render
from . import fork_safe
from .call_site import Site
from .keep_eager import uncompiled

#: The shapes that a report lists.
_MOST_LINES = 1000

#: One for all reports, so that a fork can wait for it.
_lock = fork_safe.lock()


@dataclasses.dataclass
class _Line:
    """One shape at one call site, and how often it came."""

    #: The limit that the call uses most of; None where it meets none.
    fullest: Optional[Finding]
    plan: Optional[Plan] = None
    #: The plan was run; else the call was left as it was, or refused.
    split: bool = False
    calls: int = 0

    def __str__(self) -> str:
        if self.fullest is None or not self.fullest.over:
            return "fits"
        if self.plan is None:
            return "unsplittable"
        return str(self.plan) if self.split else f"left; {self.plan} would fit"


class Report:
    """Counts of one guard, over all its scopes. Read it at any time; ``print`` it for a table.

    >>> from sdpa_guard import SDPAGuard
    >>> report = SDPAGuard().report
    >>> report.calls, report.split, report.chunks, report.unsplittable
    (0, 0, 0, 0)
    >>> report.fits
    True
    """

    def __init__(self) -> None:
        #: List the calls that are inside every bound, too.
        self.lists_every_call = False
        #: Attention calls on the devices that the guard judges.
        self.calls = 0
        #: Those that were split.
        self.split = 0
        #: The calls that reached torch in place of the split ones.
        self.chunks = 0
        #: Those over a limit that no plan cures; they were left as they are.
        self.unsplittable = 0
        self._over = 0
        self._ratios: dict[str, float] = {}
        self._sites: dict[tuple[Site, Call], _Line] = {}

    @property
    def fits(self) -> bool:
        """Whether no call was over a limit."""
        return self._over == 0

    @uncompiled
    def saw(self) -> None:
        """Count one judged call."""
        with _lock:
            self.calls += 1

    def measured(self, findings: tuple[Finding, ...]) -> None:
        """Keep the largest ratio of each limit."""
        with _lock:
            for finding in findings:
                known = self._ratios.get(finding.limit.id, 0.0)
                self._ratios[finding.limit.id] = max(known, finding.ratio)

    def inside(self, site: Site, call: Call, fullest: Optional[Finding]) -> None:
        """List a call that is inside every bound; it is counted already."""
        with _lock:
            self._list(site, call, _Line(fullest))

    def split_up(
        self, site: Site, call: Call, fullest: Optional[Finding], plan: Optional[Plan]
    ) -> None:
        """Count a call that is about to be split."""
        with _lock:
            self._list(site, call, _Line(fullest, plan, split=True))
            self.split += 1
            self._over += 1

    def chunk(self) -> None:
        """Count one chunk."""
        with _lock:
            self.chunks += 1

    def left(
        self, site: Site, call: Call, fullest: Optional[Finding], plan: Optional[Plan]
    ) -> None:
        """Count a call that is over a limit and was left as it is, or refused."""
        with _lock:
            self._list(site, call, _Line(fullest, plan))
            self.unsplittable += plan is None
            self._over += 1

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: the counts, the largest ratio per limit, and a list of call sites."""
        with _lock:
            return {
                "calls": self.calls,
                "split": self.split,
                "chunks": self.chunks,
                "unsplittable": self.unsplittable,
                "ratios": dict(self._ratios),
                "sites": [
                    {
                        "file": site.filename,
                        "line": site.lineno,
                        "shape": str(call),
                        "calls": line.calls,
                        "fullest": line.fullest and line.fullest.as_dict(),
                        "split": line.split,
                        "plan": line.plan and line.plan.as_dict(),
                    }
                    for (site, call), line in self._sites.items()
                ],
            }

    def __str__(self) -> str:
        with _lock:
            head = (
                f"sdpa_guard: {self.calls} attention calls, {self.split} split into "
                f"{self.chunks} chunks, {self.unsplittable} unsplittable"
            )
            highest = sorted(self._ratios.items(), key=lambda item: -item[1])
            ratios = [(limit, f"{ratio:.1%}") for limit, ratio in highest if ratio >= 0.01]
            sites = [
                (
                    str(line.calls),
                    str(call),
                    line.fullest.share if line.fullest else "",
                    str(line),
                    f"{os.path.basename(site.filename)}:{site.lineno}",
                )
                for (site, call), line in self._sites.items()
            ]
        tables = [head]
        if ratios:
            tables.append(render(("limit", "largest use"), ratios))
        if sites:
            tables.append(render(("calls", "shape", "fullest limit", "plan", "where"), sites))
        return "\n\n".join(tables)

    def _list(self, site: Site, call: Call, line: _Line) -> None:
        # A run with ever new shapes must not fill the memory; its later ones are not listed.
        if (site, call) in self._sites or len(self._sites) < _MOST_LINES:
            self._sites.setdefault((site, call), line).calls += 1

    def __repr__(self) -> str:
        return f"<Report calls={self.calls} split={self.split} chunks={self.chunks}>"
