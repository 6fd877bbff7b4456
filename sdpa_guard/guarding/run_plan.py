"""Run a plan: split the tensors, call torch once a chunk, join the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable, Optional

import torch

from .. import torch_private
from ..limits.call import BATCH, CONTIGUOUS, HEADS, ROWS
from ..limits.plan import Plan
from .arguments import Arguments, is_compiling

TorchCall = Callable[..., torch.Tensor]
Join = Callable[[Iterator[torch.Tensor], tuple[int, ...], int], torch.Tensor]

#: Where each axis lies in query, key, value and mask, counted from the last dimension.
_DIM = {BATCH: -4, HEADS: -3, ROWS: -2}


def run(plan: Plan, torch_call: TorchCall, arguments: Arguments) -> torch.Tensor:
    """What the whole call would return, made of the plan's chunks: each is copied once.

    A 3-D call, (N, L, E), is split the same way: N are its heads.
    """
    joined = _run(plan, torch_call, arguments, _fill if _can_fill(arguments) else _join)
    # The whole call's result is no view, so that it can be changed or detached in place.
    return torch_private.unsafe_view(joined, joined.shape)


def ends(plan: Optional[Plan], arguments: Arguments) -> tuple[Arguments, Arguments]:
    """Views of the first and the last chunk: between them, every size and the furthest offset."""
    if plan is None:
        return arguments, arguments
    if plan.axis == CONTIGUOUS:
        return ends(plan.inner, arguments)
    first, *_, last = split(plan, arguments)
    return ends(plan.inner, first)[0], ends(plan.inner, last)[1]


def split(plan: Plan, arguments: Arguments) -> Iterator[Arguments]:
    """Views of the arguments, one set for each chunk of the plan's own axis."""
    query, key, value, mask, options = arguments
    dim = _DIM[plan.axis]
    count = len(plan.sizes)
    queries = torch.split_with_sizes(query, plan.sizes, dim)
    keys = values = None
    if plan.axis != ROWS:
        # Under GQA a chunk of heads takes the key/value heads of its groups.
        per_group = query.shape[dim] // key.shape[dim]
        sizes = [size // per_group for size in plan.sizes]
        keys = torch.split_with_sizes(key, sizes, dim)
        values = torch.split_with_sizes(value, sizes, dim)
    # A mask is split where it has the axis, and shared where it broadcasts over it.
    has_axis = mask is not None and mask.dim() >= -dim and mask.shape[dim] != 1
    masks = torch.split_with_sizes(mask, plan.sizes, dim) if mask is not None and has_axis else None
    for i in range(count):
        yield Arguments(
            queries[i],
            key if keys is None else keys[i],
            value if values is None else values[i],
            mask if masks is None else masks[i],
            options,
        )


def _run(
    plan: Optional[Plan], torch_call: TorchCall, arguments: Arguments, join: Join
) -> torch.Tensor:
    if plan is None:
        query, key, value, mask, options = arguments
        return torch_call(query, key, value, mask, **options)
    if plan.axis == CONTIGUOUS:
        key, value = arguments.key.contiguous(), arguments.value.contiguous()
        return _run(plan.inner, torch_call, arguments._replace(key=key, value=value), join)
    parts = (_run(plan.inner, torch_call, chunk, join) for chunk in split(plan, arguments))
    return join(parts, plan.sizes, _DIM[plan.axis])


def _join(parts: Iterator[torch.Tensor], sizes: tuple[int, ...], dim: int) -> torch.Tensor:
    """One concatenation that keeps the parts' order of dimensions in memory."""
    whole = list(parts)
    order = _outer_first(whole[0])
    joined = torch.cat([part.permute(order) for part in whole], order.index(dim % len(order)))
    return joined.permute([order.index(d) for d in range(len(order))])


def _fill(parts: Iterator[torch.Tensor], sizes: tuple[int, ...], dim: int) -> torch.Tensor:
    """The same, but each part is let go of before the next one is made."""
    part = next(parts)
    order = _outer_first(part)
    shape = list(part.shape)
    shape[dim] = sum(sizes)
    whole = part.new_empty([shape[d] for d in order])
    whole = whole.permute([order.index(d) for d in range(len(order))])
    places = iter(whole.split_with_sizes(sizes, dim))
    next(places).copy_(part)
    for place in places:
        del part
        part = next(parts)
        place.copy_(part)
    return whole


def _can_fill(arguments: Arguments) -> bool:
    """Whether nobody looks on who must not see a tensor change: no gradient, no tracer, no mode."""
    wants_gradient = any(tensor.requires_grad for tensor in arguments.tensors)
    return not (
        (torch.is_grad_enabled() and wants_gradient)
        or is_compiling(arguments.query)
        or torch_private.innermost_transform()
        or torch_private.dispatch_modes()
    )


def _outer_first(tensor: torch.Tensor) -> list[int]:
    """The dimensions in their order in memory, the outermost first."""
    order: list[int] = []
    for dim in range(tensor.dim()):
        at = 0
        while at < len(order) and not _lies_outside(tensor, dim, order[at]):
            at += 1
        order.insert(at, dim)
    return order


def _lies_outside(tensor: torch.Tensor, dim: int, other: int) -> bool:
    """Whether one dimension lies outside an earlier one, against the order of their numbers."""
    stride, other_stride = tensor.stride(dim), tensor.stride(other)
    if other_stride == 0:
        return False  # a chunk of one expanded entry says nothing of the order
    # With the same stride, a dimension of size one lies inside the other.
    inside = tensor.shape[other] == 1 and tensor.shape[dim] != 1
    return stride > other_stride or (stride == other_stride and inside)
