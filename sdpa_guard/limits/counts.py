"""What the limits count: the numbers that the kernels compute from a call's shape and strides."""

from __future__ import annotations

from .call import Call


def padded_head_dim(head_dim: int) -> int:
    """The head dim that FlashAttention's backward workspace is laid out with.

    Multiples of 32 up to 128, of 64 above; torch before 2.11 used 32 throughout, which is less
    (https://github.com/pytorch/pytorch/pull/174114).
    """
    return round_up(head_dim, 32 if head_dim <= 128 else 64)


def round_up(count: int, multiple: int) -> int:
    """The next multiple: one query row costs FlashAttention's workspace 128."""
    return (count + multiple - 1) // multiple * multiple


def flash_workspace(call: Call) -> int:
    return call.batch * flash_workspace_entry(call)


def flash_workspace_entry(call: Call) -> int:
    return round_up(call.seq_q, 128) * call.heads * padded_head_dim(call.head_dim)


def flash_grid_heads(call: Call) -> int:
    # One query row without backward or dropout: the forward moves the group into the rows.
    folds = call.seq_q == 1 and not call.needs_backward and not call.dropout_p
    return call.kv_heads if folds else call.heads


def mask_last_tile(call: Call) -> int:
    # The kernel's tiles hold 64 rows; 46344 squared passes, the next length fails.
    if call.mask_row_stride is None:
        return 0
    return _last_tile(call.seq_q) * call.mask_row_stride + _last_tile(call.seq_k)


def _last_tile(length: int) -> int:
    return (length - 1) // 64 * 64


def dropout_offsets(call: Call) -> int:
    if not call.dropout_p:
        return 0
    entry = call.heads * call.seq_q * call.seq_k
    # One entry from 2**31 on is unsafe as well: the odd number lies past 2**32 exactly then.
    return max(call.batch * entry, 2 * entry + 1)


def saved_sums(call: Call) -> int:
    rows = call.batch * call.seq_q
    if not call.needs_backward:
        return rows
    return max(rows, call.batch * call.heads * round_up(call.seq_q, 32))


def row_reach(call: Call) -> int:
    return call.seq_k * max(call.key_strides.row, call.value_strides.row)


def head_reach(call: Call) -> int:
    strides = (call.query_strides, call.key_strides, call.value_strides)
    return (call.heads - 1) * max(s.head for s in strides)


def largest_stride(call: Call) -> int:
    strides = (*call.query_strides, *call.key_strides, *call.value_strides)
    return max(*strides, call.mask_row_stride or 0)


def heads_as_rows(call: Call) -> int:
    wrong = call.seq_q == 1 and call.expanded_kv and not call.needs_backward
    return call.heads if wrong else 0


def flash_last_entry(call: Call) -> int:
    return (call.batch - 1) * flash_workspace_entry(call)


def nothing(call: Call) -> int:
    return 0


def batch(call: Call) -> int:
    return call.batch


def row_sums(call: Call) -> int:
    return call.batch * call.heads * call.seq_q


def padded_row_sums(call: Call) -> int:
    return call.batch * call.heads * round_up(call.seq_q, 128)


def batch_with_dropout(call: Call) -> int:
    return call.batch if call.dropout_p else 0


def batch_with_mask_gradient(call: Call) -> int:
    return call.batch if call.mask_requires_grad else 0


def heads(call: Call) -> int:
    return call.heads


def mask_rows(call: Call) -> int:
    return call.seq_q * (call.mask_row_stride or 0)


def dropout_rows(call: Call) -> int:
    return call.seq_q * call.seq_k if call.dropout_p else 0


def larger_grid_axis(call: Call) -> int:
    return max(call.batch, call.heads)
