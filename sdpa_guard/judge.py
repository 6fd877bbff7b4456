"""How a call stands against the limits, and which plan brings it inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

from packaging.version import Version

from .backends import takes
from .call import Call
from .limit import BACKWARD, Limit
from .plan import Plan, fewest
from .release import RELEASES


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


def examine(call: Call, limits: Iterable[Limit], release: Optional[Version]) -> tuple[Finding, ...]:
    """Every limit that the call could meet in that torch release; None is any supported one."""
    return tuple(
        Finding(limit, limit.counted(call)) for limit in limits if _applies(limit, call, release)
    )


def over(findings: Sequence[Finding]) -> list[Finding]:
    """The findings past their bound, the furthest first."""
    return sorted((f for f in findings if f.over), key=lambda f: -f.ratio)


def remedy(call: Call, findings_of: Callable[[Call], Sequence[Finding]]) -> Optional[Plan]:
    """The plan for a call that is over some limit, or None where nothing cures it."""
    cures = frozenset(cure for f in findings_of(call) if f.over for cure in f.limit.cures)
    return fewest(call, cures, lambda chunk: not any(f.over for f in findings_of(chunk)))


def _applies(limit: Limit, call: Call, release: Optional[Version]) -> bool:
    if limit.pass_ == BACKWARD and not call.needs_backward:
        return False
    releases = RELEASES if release is None else (release,)
    return any(limit.affects(r) and takes(limit.backend, call, r) for r in releases)
