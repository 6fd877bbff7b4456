"""What a user is told of a call that is over a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from ..limits.call import ROWS, Call
from ..limits.findings import Finding
from ..limits.plan import Plan
from ..limits.releases import Release


def explain(
    call: Call, over: Sequence[Finding], plan: Optional[Plan], releases: tuple[Release, ...]
) -> str:
    """Which limits the call is over, what would happen, and the cure."""
    worst, *others = sorted(over, key=lambda finding: -finding.ratio)
    where = f"torch {worst.limit.releases if len(releases) > 1 else releases[0]}"
    also = f" (also over: {', '.join(f.limit.id for f in others)})" if others else ""
    return (
        f"scaled_dot_product_attention({call}) is over limit {worst.limit}: counted "
        f"{worst.counted} > bound {worst.bound}{also}. On {where}: {worst.limit.effect}. "
        f"Cure: {_cure(call, worst, plan)}."
    )


def _cure(call: Call, worst: Finding, plan: Optional[Plan]) -> str:
    if plan is not None:
        return f'SDPAGuard(policy="split") makes {plan} of it'
    cure = "no split cures it, so make the call smaller, or choose another backend for it"
    if call.is_causal and ROWS in worst.limit.cures:
        cure = f"is_causal forbids splitting query rows, and {cure}"
    if call.lanes > 1:
        cure = f"torch.vmap runs {call.lanes} calls as one: give it a chunk_size; else {cure}"
    return f"{cure} (torch.nn.attention.sdpa_kernel)"


def stand_in_is_active(name: str) -> str:
    """Said once where FlashAttention's place is taken."""
    return (
        f"{name} is active in place of torch's own FlashAttention; its limits are not "
        "known, so sdpa_guard leaves its calls as they are."
    )


def could_not_judge(fault: Exception) -> str:
    """Said once where the guard itself fails."""
    return (
        f"sdpa_guard could not judge an attention call and left it as it is: {fault!r}. "
        "Please report it with the shapes of the call."
    )
