"""How a call stands against the limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Optional

from .backends import takes
from .call import Call
from .limit import BACKWARD, Limit
from .releases import Release


@dataclasses.dataclass(frozen=True)
class Finding:
    """One limit that a call could meet, and how much of it the call uses.

    >>> from sdpa_guard import check
    >>> finding = check(400, 4, 10496, 128, torch_version="2.9.0").findings[0]
    >>> finding.limit.id, finding.counted, finding.bound, finding.over
    ('F1', 2149580800, 2147483648, True)
    """

    limit: Limit
    #: What the kernel counts, a whole number without a unit.
    counted: int

    @property
    def bound(self) -> int:
        """The largest safe count."""
        return self.limit.bound

    @property
    def ratio(self) -> float:
        """counted / bound."""
        return self.counted / self.bound

    @property
    def over(self) -> bool:
        """Whether the count is past the bound."""
        return self.counted > self.bound

    @property
    def share(self) -> str:
        """The limit's id and the share of its bound: "F1 100.1%"."""
        return f"{self.limit.id} {self.ratio:.1%}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "limit": self.limit.id,
            "name": self.limit.name,
            "backend": self.limit.backend,
            "pass": self.limit.pass_,
            "counted": self.counted,
            "bound": self.bound,
            "ratio": self.ratio,
            "over": self.over,
            "effect": self.limit.effect,
        }


def examine(
    call: Call, limits: Iterable[Limit], releases: tuple[Release, ...]
) -> tuple[Finding, ...]:
    """Every limit that the call could meet in some of those torch releases."""
    return tuple(
        Finding(limit, limit.counted(call)) for limit in limits if _applies(limit, call, releases)
    )


def exceeded(
    call: Call, limits: Iterable[Limit], releases: tuple[Release, ...]
) -> tuple[Finding, ...]:
    """The findings past their bound."""
    found = []
    for limit in limits:
        # The count comes first: most calls are far from most limits, and the rest takes longer.
        counted = limit.counted(call)
        if counted > limit.bound and _applies(limit, call, releases):
            found.append(Finding(limit, counted))
    return tuple(found)


def fullest(findings: Iterable[Finding]) -> Optional[Finding]:
    """The finding that uses most of its bound; None where there is no finding."""
    return max(findings, key=lambda finding: finding.ratio, default=None)


def _applies(limit: Limit, call: Call, releases: tuple[Release, ...]) -> bool:
    if limit.pass_ == BACKWARD and not call.needs_backward:
        return False
    return any(limit.affects(r) and takes(limit.backend, call, r) for r in releases)
