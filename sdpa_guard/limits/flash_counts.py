"""What the flash limits count: the numbers that FlashAttention computes from a call."""

from __future__ import annotations

from .call import Call
from .kernel_blocks import (
    flash_backward_rows,
    flash_forward_keys,
    flash_split_keys,
    last_start,
    padded_head_dim,
)
from .rounding import divide_up, round_up

#: A call of more blocks of 64 query rows fills the largest GPU (188 multiprocessors, two blocks
#: each, to 80%), and the keys are not split.
_IDLE_BLOCKS = 300


def padded_rows(call: Call) -> int:
    """The query rows that FlashAttention makes room for."""
    return round_up(call.seq_q, 128)


def workspace(call: Call) -> int:
    return call.batch * padded_rows(call) * call.heads * padded_head_dim(call.head_dim)


def last_entry(call: Call) -> int:
    return (call.batch - 1) * padded_rows(call) * call.heads * padded_head_dim(call.head_dim)


def nothing(call: Call) -> int:
    return 0


def batch(call: Call) -> int:
    return call.batch


def grid_heads(call: Call) -> int:
    # One query row without backward or dropout: the forward moves the group into the rows.
    folds = call.seq_q == 1 and not call.needs_backward and not call.dropout_p
    return call.kv_heads if folds else call.heads


def row_sums(call: Call) -> int:
    return (call.batch * call.heads - 1) * call.seq_q


def row_sums_before_2_5(call: Call) -> int:
    return row_sums(call) + last_start(call.seq_q, 64)


def padded_row_sums(call: Call) -> int:
    return (call.batch * call.heads - 1) * padded_rows(call) + last_start(call.seq_q, 64)


def query_step(call: Call) -> int:
    steps = [rows for rows in flash_backward_rows(call) if _is_longer(call, call.seq_q, rows)]
    return max([0, *steps]) * call.query_strides.row


def key_step(call: Call) -> int:
    steps = [keys for keys in flash_forward_keys(call) if _is_longer(call, call.seq_k, keys)]
    return max([0, *steps]) * max(call.key_strides.row, call.value_strides.row)


def split_key_step(call: Call) -> int:
    keys = flash_split_keys(call)
    swaps = call.seq_q == 1 and call.heads > call.kv_heads
    heads, rows = (call.kv_heads, call.group) if swaps else (call.heads, call.seq_q)
    # Each of two splits or more has to hold two blocks for the kernel to step.
    if call.dropout_p or not _is_longer(call, call.seq_k, 2 * keys):
        return 0
    blocks = call.batch * heads * divide_up(rows, 64)
    if not call.is_traced and blocks > _IDLE_BLOCKS:
        return 0
    return keys * max(call.key_strides.row, call.value_strides.row)


def _is_longer(call: Call, length: int, block: int) -> bool:
    # A comparison would bind a traced program to this side of the block.
    return call.is_traced or length > block
