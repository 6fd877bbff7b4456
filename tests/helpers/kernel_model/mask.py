"""What torch's C++ makes of a mask before the efficient kernel, and the bias strides it leaves.

Read in PT aten/src/ATen/native/transformers/attention.cpp: convert_boolean_attn_mask, then
aligned_tensor<8> and pad_bias<8> on the mask as given, then expand. The alignment of 8 came with
pytorch/pytorch#114173 and #114837 (torch 2.2). The mask's gradient: PT attention_backward.cu
@00afd8f2, _efficient_attention_backward.

Compared with torch 2.13's own where, pad and expand on twenty thousand small masks: the same but
for 4-D masks with channels-last strides, which the padded copy keeps. They end in a last stride
that the kernel refuses, or differ in the stride of a dimension of size one.
"""

from __future__ import annotations

import functools
from typing import Optional

from .launch import Launch, Mask, Strides
from .widths import round_up

_ALIGNMENT = 8
_GRAD_ALIGNMENT = 16


def bias_strides(launch: Launch) -> Optional[Strides]:
    """The strides of the (batch, heads, seq_q, seq_k) bias that the kernel is given."""
    if launch.mask is None:
        return None
    target = (launch.batch, launch.heads, launch.seq_q, launch.seq_k)
    return _bias_strides(launch.mask, target)


def bias_grad_row(launch: Launch) -> int:
    """The row stride of the mask's gradient: contiguous for the expanded shape, rows padded."""
    return round_up(launch.seq_k, _GRAD_ALIGNMENT)


@functools.lru_cache(maxsize=4096)
def _bias_strides(mask: Mask, target: tuple[int, int, int, int]) -> Strides:
    shape, strides = mask.shape, mask.strides
    if mask.boolean:
        # A new tensor in the query's type.
        strides = _dense_in_same_order(shape, strides)
    if not _is_aligned(strides):
        # A last dimension that is a multiple of 8 still grows by 8.
        padded = shape[-1] + _ALIGNMENT - shape[-1] % _ALIGNMENT
        strides = contiguous_strides((*shape[:-1], padded))
    return Strides(*_expand(shape, strides, target)[:3])


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _is_aligned(strides: tuple[int, ...]) -> bool:
    return strides[-1] == 1 and all(stride % _ALIGNMENT == 0 for stride in strides[:-1])


def _dense_in_same_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor whose dimensions lie in memory in the same order.

    As TensorIterator orders them (PT aten/src/ATen/TensorIterator.cpp, reorder_dimensions): an
    insertion sort from the last dimension that leaves dimensions of stride 0 where they are.
    """
    order = list(range(len(shape)))[::-1]
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            swap = _should_swap(shape, strides, order[before], order[at])
            if swap > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif swap < 0:
                break
    dense, step = [0] * len(shape), 1
    for dim in order:
        dense[dim] = step
        step *= shape[dim]
    return tuple(dense)


def _should_swap(shape: tuple[int, ...], strides: tuple[int, ...], inner: int, outer: int) -> int:
    if strides[inner] == 0 or strides[outer] == 0:
        return 0
    if strides[inner] != strides[outer]:
        return -1 if strides[inner] < strides[outer] else 1
    return 1 if shape[inner] > shape[outer] else 0


def _expand(shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]) -> list[int]:
    """The strides after expand (PT aten/src/ATen/ExpandUtils.cpp, inferExpandGeometry)."""
    new = len(target) - len(shape)
    expanded = [0] * len(target)
    for i in range(len(target) - 1, -1, -1):
        if i >= new:
            size, stride = shape[i - new], strides[i - new]
        else:
            size, stride = 1, target[i + 1] * expanded[i + 1]
        expanded[i] = stride if size == target[i] else 0
    return expanded
