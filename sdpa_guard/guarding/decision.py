"""The decision on a call: leave it, split it, or refuse to."""

from __future__ import annotations

from typing import Literal, NamedTuple, Optional

from ..limits.backends import Backend
from ..limits.call import Call
from ..limits.find_plan import cure
from ..limits.findings import Finding, exceeded
from ..limits.limit import Limit, on_gpu
from ..limits.plan import Plan
from ..limits.releases import Release
from .options import Options


class Answers(NamedTuple):
    """What torch says of a call."""

    #: The releases whose limits count.
    releases: tuple[Release, ...]
    #: The backends that could take the call, or a chunk of it.
    backends: frozenset[Backend]
    #: The GPU's compute capability; None in a rehearsal.
    capability: Optional[tuple[int, int]] = None


class Decision(NamedTuple):
    """What is to become of a call."""

    #: "leave": it is inside every bound. "split": the plan is run. "refuse": it is over a limit
    #: that nothing cures, or that the policy does not want cured.
    action: Literal["leave", "split", "refuse"]
    #: The limits that it is over.
    over: tuple[Finding, ...] = ()
    #: What brings it inside; None: nothing does, or the call is left as it is.
    plan: Optional[Plan] = None


def limits_of(options: Options, answers: Answers) -> list[Limit]:
    """The limits that can still apply after torch's answers; others are not even counted."""
    return [
        limit
        for limit in on_gpu(options.limits, answers.capability)
        if limit.backend in answers.backends and any(map(limit.affects, answers.releases))
    ]


def decide(options: Options, call: Call, answers: Answers) -> Decision:
    """Leave, split or refuse: the arguments alone decide, and nothing else happens."""
    limits = limits_of(options, answers)
    over = exceeded(call, limits, answers.releases)
    if not over:
        return Decision("leave")
    curable = any(finding.limit.cures for finding in over)
    plan = cure(call.with_numbers(), limits, answers.releases) if curable else None
    if plan is None or options.policy != "split":
        return Decision("refuse", over, plan)
    return Decision("split", over, plan)
