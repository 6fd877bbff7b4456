"""The blocks that the kernels work by: where the last one starts decides how far an offset goes.

Where the block depends on the GPU, the one with the furthest offset counts. From the lists of
kernels in FlashAttention's flash_{fwd,bwd}_launch_template.h and torch's cutlass{F,B}.h.
"""

from __future__ import annotations

import torch

from .call import Call
from .rounding import round_up


def last_start(length: int, tile: int) -> int:
    """Where the last block of so many rows or keys starts."""
    return (length - 1) // tile * tile


def padded_head_dim(head_dim: int) -> int:
    """The head dim that FlashAttention's backward workspace is laid out with.

    Multiples of 32 up to 128, of 64 above; torch before 2.11 used 32 throughout, which is less
    (https://github.com/pytorch/pytorch/pull/174114).
    """
    return round_up(head_dim, 32 if head_dim <= 128 else 64)


def flash_backward_rows(call: Call) -> tuple[int, ...]:
    """The query blocks of FlashAttention's backward that a call can get."""
    if call.head_dim <= 32:
        return (128,)
    return (128, 64) if call.head_dim <= 64 else (64,)


def flash_forward_keys(call: Call) -> tuple[int, ...]:
    """The key blocks of FlashAttention's forward, up to 2.5.6, that a call can get."""
    dim, dropout, causal = call.head_dim, call.dropout_p > 0, call.is_causal and call.seq_q > 1
    if dim <= 64:
        return (64,) if dropout and dim > 32 else (128,)
    if dim <= 96:
        return (64,)
    if dim <= 128:
        return (32,) if dropout else ((64,) if causal else (64, 32))
    return (64, 32) if dim <= 160 else (64,)


def flash_split_keys(call: Call) -> int:
    """The key block of the forward that splits the keys."""
    if call.head_dim <= 64:
        return 256
    return 128 if call.head_dim <= 128 else 64


def efficient_forward_rows(call: Call) -> tuple[int, ...]:
    """The query blocks of the efficient forward that a call can get, the largest first."""
    dim = max(call.head_dim, call.value_dim)
    if dim <= 64:
        return (64,)
    return (64, 32) if dim <= 128 else (32,)


def efficient_forward_keys(call: Call) -> int:
    """Its key block."""
    return 64 if max(call.head_dim, call.value_dim) <= 64 else 128


def efficient_backward_block(call: Call) -> int:
    """The smallest block of rows or keys of the efficient backward that a call can get."""
    small = call.dtype is torch.float32 and max(call.head_dim, call.value_dim) <= 64
    return 32 if small and call.dropout_p > 0 else 64
