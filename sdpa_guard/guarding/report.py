"""What a user reads of the calls that a guard saw, what it split, and where."""

from __future__ import annotations

import os
from typing import Any

from ..limits.text_table import render
from .ledger import Ledger


class Report:
    """Counts of one guard, over all its scopes. Read it at any time; ``print`` it for a table.

    >>> from sdpa_guard import SDPAGuard
    >>> report = SDPAGuard().report
    >>> report.calls, report.split, report.chunks, report.unsplittable
    (0, 0, 0, 0)
    >>> report.fits
    True
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def calls(self) -> int:
        """Attention calls on the devices that the guard judges."""
        return self._ledger.calls.value

    @property
    def split(self) -> int:
        """Those that were split."""
        return self._ledger.split.value

    @property
    def chunks(self) -> int:
        """The calls that reached torch in place of the split ones."""
        return self._ledger.chunks.value

    @property
    def unsplittable(self) -> int:
        """Those over a limit that no plan cures; they were left as they are."""
        return self._ledger.unsplittable.value

    @property
    def fits(self) -> bool:
        """Whether no call was over a limit."""
        return self._ledger.over.value == 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: the counts, the largest ratio per limit, and a list of call sites."""
        return {
            "calls": self.calls,
            "split": self.split,
            "chunks": self.chunks,
            "unsplittable": self.unsplittable,
            "ratios": self._ledger.ratios(),
            "sites": [
                {
                    "file": site.filename,
                    "line": site.lineno,
                    "shape": str(call),
                    "calls": line.calls.value,
                    "fullest": line.fullest and line.fullest.as_dict(),
                    "split": line.split,
                    "plan": line.plan and line.plan.as_dict(),
                }
                for (site, call), line in list(self._ledger.lines.items())
            ],
        }

    def __str__(self) -> str:
        head = (
            f"sdpa_guard: {self.calls} attention calls, {self.split} split into "
            f"{self.chunks} chunks, {self.unsplittable} unsplittable"
        )
        highest = sorted(self._ledger.ratios().items(), key=lambda item: -item[1])
        ratios = [(limit, f"{ratio:.1%}") for limit, ratio in highest if ratio >= 0.01]
        sites = [
            (
                str(line.calls.value),
                str(call),
                line.fullest.share if line.fullest else "",
                str(line),
                f"{os.path.basename(site.filename)}:{site.lineno}",
            )
            for (site, call), line in list(self._ledger.lines.items())
        ]
        tables = [head]
        if ratios:
            tables.append(render(("limit", "largest use"), ratios))
        if sites:
            tables.append(render(("calls", "shape", "fullest limit", "plan", "where"), sites))
        return "\n\n".join(tables)

    def __repr__(self) -> str:
        return f"<Report calls={self.calls} split={self.split} chunks={self.chunks}>"
