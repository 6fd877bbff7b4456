"""For programs that may have no guard: nothing of sdpa_guard is imported here."""

from __future__ import annotations

import sys
import warnings
from typing import Optional

import torch


def policy() -> Optional[str]:
    """The policy of this process's guard, by what becomes of a call over a limit."""
    guard = sys.modules.get("sdpa_guard")
    if guard is None or not guard.is_enabled():
        return None
    x = torch.empty(400, 4, 10496, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
    before = guard.report().split
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            torch.nn.functional.scaled_dot_product_attention(x, x, x)
        except guard.OversizedCallError:
            return "raise"
    return "warn" if said else {0: "left", 1: "split"}[guard.report().split - before]
