"""What the cuDNN limits count."""

from __future__ import annotations

from .call import Call


def larger_grid_axis(call: Call) -> int:
    return max(call.batch, call.heads)


def half_full_block(call: Call) -> int:
    wrong = call.seq_k % 128 == 64 and (call.mask is not None or not call.is_causal)
    return 2 if wrong else 0


def grouped_decode(call: Call) -> int:
    return 2 if call.seq_q == 1 and call.heads > call.kv_heads else 0
