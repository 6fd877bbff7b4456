"""What the efficient limits count: the numbers that the memory-efficient kernels compute."""

from __future__ import annotations

import torch

from .call import Call
from .integer_ends import GRID, INT32
from .kernel_blocks import (
    efficient_backward_block,
    efficient_forward_keys,
    efficient_forward_rows,
    last_start,
)
from .rounding import divide_up, round_up


def batch(call: Call) -> int:
    return call.batch


def batch_with_dropout(call: Call) -> int:
    return call.batch if call.dropout_p else 0


def batch_with_mask_gradient(call: Call) -> int:
    return call.batch if call.mask_requires_grad else 0


def batch_with_expanded_gradient(call: Call) -> int:
    return call.batch if call.expanded_grads else 0


def batch_compiled(call: Call) -> int:
    return call.batch if call.is_traced else 0


def heads(call: Call) -> int:
    return call.heads


def bias_rows_backward(call: Call) -> int:
    gradient = 0 if call.mask is None else call.mask.gradient_row()
    row = max(call.mask_row_stride, gradient)
    return last_start(call.seq_q, efficient_backward_block(call)) * row


def bias_rows_forward(call: Call) -> int:
    # The kernel's number is the last block's start, less than a block before the end.
    return call.seq_q * call.mask_row_stride if call.seq_q > 1 else 0


def dropout_rows(call: Call) -> int:
    return call.seq_q * call.seq_k if call.dropout_p else 0


def dropout_offsets(call: Call) -> int:
    if not call.dropout_p:
        return 0
    # What a head and an entry take counts modulo 2**32 in both kernels.
    head = call.seq_q * call.seq_k % 2**32
    entry = call.heads * head % 2**32
    last_head, last_entry = (call.heads - 1) * head, (call.batch - 1) * entry
    # The backward's 32-bit parts are signed: 2**31 is too much there.
    return max(last_entry + last_head, 2 * last_head, 2 * entry if call.batch > 1 else 0)


def key_reach(call: Call) -> int:
    # The kernel's number is the last block's start, less than a block before the end.
    keys = _keys_seen(call)
    reach = (keys if call.seq_k > 1 else 0) * max(call.key_strides.row, call.value_strides.row)
    # A single block starts at 0, however far apart its rows are.
    one_block = not call.is_traced and keys <= efficient_forward_keys(call)
    return min(reach, INT32) if one_block else reach


def head_reach(call: Call) -> int:
    keys = max(call.key_strides.head, call.value_strides.head)
    return max((call.heads - 1) * call.query_strides.head, (call.kv_heads - 1) * keys)


def saved_sums(call: Call) -> int:
    # torch from 2.8 on cuts the batch at 65535 itself; earlier releases cannot launch more (E1).
    # A traced program must not be bound to one side of that.
    entries = call.batch if call.is_traced else min(call.batch, GRID)
    if not call.saves_sums:
        return (entries - 1) * call.seq_q
    return (entries * call.heads - 1) * round_up(call.seq_q, 32) + _last_row(call)


def largest_stride(call: Call) -> int:
    strides = (call.query_strides, call.key_strides, call.value_strides)
    given = [max(stride.head, stride.row) for stride in strides]
    return max(*given, call.mask_row_stride, call.heads * call.value_dim)


def wrong_one_row(call: Call) -> int:
    if not _one_row(call):
        return 0
    bias, start = call.bias, call.seq_q - 1
    wrong = (
        (call.mask is not None and start > 0 and bias.head != bias.row)
        or _past_heads(call)
        or (call.is_causal and call.seq_k > call.seq_q)
        or (call.dropout_p > 0 and call.heads > 1 and start > 0)
        or (call.heads > 1 and bias.head >= 2**31)
    )
    return 2 if wrong else 0


def wrong_one_row_2_3(call: Call) -> int:
    if not _one_row(call):
        return 0
    return 2 if call.heads > 1 and call.bias.head != call.bias.row else 0


def one_row_bias(call: Call) -> int:
    takes = _one_row(call) and call.heads > 1 and not call.dropout_p
    return call.bias.head if takes else 0


def row_offsets(call: Call) -> int:
    block = efficient_backward_block(call)
    query, keys = last_start(call.seq_q, block), last_start(call.seq_k, block)
    # torch 2.3 reads up to the end of the last query block.
    seen = last_start(round_up(call.seq_q, 128), block)
    read = min(keys, seen) if call.is_causal else keys
    # With causality, the gradients of keys that no query sees are zeroed row by row.
    written = call.seq_k - 1 if call.is_causal and read < keys else keys
    summed = query if call.dtype is torch.float32 else call.seq_q - 1
    return max(
        query * max(call.query_strides.row, call.heads * call.head_dim),
        read * max(call.key_strides.row, call.value_strides.row),
        summed * call.heads * call.value_dim,
        written * call.heads * max(call.head_dim, call.value_dim),
    )


def workspace(call: Call) -> int:
    dim = max(call.head_dim, call.value_dim)
    if call.dtype is torch.float32 or dim <= 64:
        return 0
    # torch keeps the number of blocks in 16 bits.
    blocks = (divide_up(call.seq_k, 64) + 2**15) % 2**16 - 2**15
    splits = max(1, min(blocks, 200 // (call.batch * call.heads)))
    # Up to a head dim of 128 only the block of 64 keeps its gradients in the workspace.
    return splits * round_up(call.seq_k, 64) * round_up(dim, 64 if dim <= 128 else 128)


def _last_row(call: Call) -> int:
    return last_start(call.seq_q, efficient_forward_rows(call)[-1])


def _keys_seen(call: Call) -> int:
    """The keys that the last query block goes through: causality counts from the top left."""
    if not call.is_causal or call.is_traced:
        return call.seq_k
    ends = [last_start(call.seq_q, rows) + rows for rows in efficient_forward_rows(call)]
    return min(max(ends), call.seq_k)


def _one_row(call: Call) -> bool:
    """Whether the last query block holds one row and takes the path that makes rows of heads."""
    if call.key_strides.head != 0 or call.value_strides.head != 0 or call.saves_sums:
        return False
    return any((call.seq_q - 1) % rows == 0 for rows in efficient_forward_rows(call))


def _past_heads(call: Call) -> bool:
    rows = [rows for rows in efficient_forward_rows(call) if (call.seq_q - 1) % rows == 0]
    return any(call.heads > block and call.heads % block != 0 for block in rows)
