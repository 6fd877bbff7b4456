"""How a call stands against the limits, and which plan brings it inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Optional

from .backends import takes
from .call import Call
from .limit import BACKWARD, Limit
from .plan import Plan, fewest
from .release import RELEASES, Release


@dataclasses.dataclass(frozen=True)
class Finding:
    """One limit that a call could meet, and how much of it the call uses."""

    limit: Limit
    counted: int

    @property
    def bound(self) -> int:
        return self.limit.bound

    @property
    def ratio(self) -> float:
        """counted / bound."""
        return self.counted / self.bound

    @property
    def over(self) -> bool:
        return self.counted > self.bound

    @property
    def share(self) -> str:
        """In words: "F1 100.1%"."""
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


def examine(call: Call, limits: Iterable[Limit], release: Optional[Release]) -> tuple[Finding, ...]:
    """Every limit that the call could meet in that torch release; None is any supported one."""
    return tuple(
        Finding(limit, limit.counted(call)) for limit in limits if _applies(limit, call, release)
    )


def fullest(findings: Iterable[Finding]) -> Optional[Finding]:
    """The one that uses most of its bound."""
    return max(findings, key=lambda finding: finding.ratio, default=None)


def exceeded(call: Call, limits: Iterable[Limit], release: Optional[Release]) -> list[Finding]:
    """The findings past their bound."""
    found = []
    for limit in limits:
        # Most limits are far away: the count comes before the question which torch has the limit.
        counted = limit.counted(call)
        if counted > limit.bound and _applies(limit, call, release):
            found.append(Finding(limit, counted))
    return found


def remedy(call: Call, limits: Iterable[Limit], release: Optional[Release]) -> Optional[Plan]:
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
        return max([0.0, *[finding.ratio for finding in exceeded(chunk, in_reach, release)]])

    def cures(whole: Call) -> frozenset[str]:
        over = exceeded(whole, in_reach, release)
        return frozenset([cure for finding in over for cure in finding.limit.cures])

    return fewest(call, cures, load)


def _applies(limit: Limit, call: Call, release: Optional[Release]) -> bool:
    if limit.pass_ == BACKWARD and not call.needs_backward:
        return False
    releases = RELEASES if release is None else (release,)
    return any(limit.affects(r) and takes(limit.backend, call, r) for r in releases)
