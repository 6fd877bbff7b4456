"""Limits so low that small calls on the CPU are over them."""

from __future__ import annotations

import dataclasses

from sdpa_guard import LIMITS, Limit

#: The axes, as a limit's ``cures`` and a plan's ``axis`` name them.
BATCH, HEADS, ROWS, CONTIGUOUS = "batch", "heads", "rows", "contiguous"
#: Batch and heads at once.
NESTED = "nested"

#: What each lowered limit counts, and the axes that cure it.
_COUNTS = {
    BATCH: (lambda call: call.batch, (BATCH,)),
    HEADS: (lambda call: call.heads, (HEADS,)),
    ROWS: (lambda call: call.seq_q, (ROWS,)),
    NESTED: (lambda call: call.batch * call.heads, (BATCH, HEADS)),
    CONTIGUOUS: (
        # The stride of a single row, which means nothing, is not counted, nor can a copy change it.
        lambda call: (
            (call.seq_k > 1) * call.seq_k * max(call.key_strides.row, call.value_strides.row)
        ),
        (CONTIGUOUS,),
    ),
}
BY_ID = {limit.id: limit for limit in LIMITS}


def lowered(axis: str, bound: int) -> tuple[Limit]:
    """One limit that lets no more than ``bound`` units of the axis into one call."""
    counted, cures = _COUNTS[axis]
    # E4 is in every release and both passes, and its backend takes masks.
    return (dataclasses.replace(BY_ID["E4"], counted=counted, bound=bound, cures=cures),)
