"""Run a plan: split the tensors, call torch once a chunk, join the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Callable, Optional

import torch

from .. import torch_private
from ..limits.backends import FLASH
from ..limits.call import BATCH, CONTIGUOUS, DIMS, HEADS
from ..limits.plan import Plan
from . import torch_answers
from .arguments import Arguments, is_compiling, is_stand_in, tensors_of

TorchCall = Callable[..., torch.Tensor]
#: The dimensions in their order in memory, the outermost first; None: as the parts have them.
Order = Optional[list[int]]
Join = Callable[[Iterator[torch.Tensor], tuple[int, ...], int, Order], torch.Tensor]


def run(plan: Plan, torch_call: TorchCall, arguments: Arguments) -> torch.Tensor:
    """What the whole call would return, made of the plan's chunks: each is copied once.

    A 3-D call, (N, L, E), is split the same way: N are its heads.
    """
    order = _order_of_result(plan, arguments)
    joined = _run(plan, torch_call, arguments, _fill if _can_fill(arguments) else _join, order)
    # The whole call's result is no view, so that it can be changed or detached in place.
    return torch_private.unsafe_view(joined, joined.shape)


def copied(plan: Plan, arguments: Arguments) -> Arguments:
    """The arguments after the plan's copies."""
    copies = {name: getattr(arguments, name).contiguous() for name in plan.copies}
    return arguments._replace(**copies)


def samples(plan: Optional[Plan], arguments: Arguments) -> Iterator[Arguments]:
    """Views of chunks of every size and alignment.

    They are the first, the second, the smallest and the last of each level.
    Nothing is copied for them, so a chunk of a copy has the strides of the original.
    """
    if plan is None:
        yield arguments
    elif plan.axis == CONTIGUOUS:
        yield from samples(plan.inner, arguments)
    else:
        last = len(plan.sizes) - 1
        wanted = {0, 1, last, plan.sizes.index(min(plan.sizes))}
        for number, chunk in enumerate(split(plan, arguments)):
            if number in wanted:
                yield from samples(plan.inner, chunk)


def split(plan: Plan, arguments: Arguments) -> Iterator[Arguments]:
    """Views of the arguments, one set for each chunk of the plan's own axis."""
    query, key, value, mask, options = arguments
    dim = DIMS[plan.axis]
    count = len(plan.sizes)
    queries = torch.split_with_sizes(query, plan.sizes, dim)
    keys: Sequence[torch.Tensor] = [key] * count
    values: Sequence[torch.Tensor] = [value] * count
    if plan.axis == BATCH:
        keys = torch.split_with_sizes(key, plan.sizes, dim)
        values = torch.split_with_sizes(value, plan.sizes, dim)
    elif plan.axis == HEADS:
        group = query.shape[dim] // key.shape[dim]
        keys = _of_heads(key, plan.sizes, group)
        values = _of_heads(value, plan.sizes, group)
    # A mask is split where it has the axis, and shared where it broadcasts over it.
    has_axis = mask is not None and mask.dim() >= -dim and mask.shape[dim] != 1
    masks = torch.split_with_sizes(mask, plan.sizes, dim) if mask is not None and has_axis else None
    for i in range(count):
        yield Arguments(
            queries[i],
            keys[i],
            values[i],
            mask if masks is None else masks[i],
            options,
        )


def _of_heads(tensor: torch.Tensor, sizes: tuple[int, ...], group: int) -> list[torch.Tensor]:
    """The key/value heads that go with each chunk of query heads: chunks in one group share one."""
    if min(sizes) >= group:
        return list(torch.split_with_sizes(tensor, [size // group for size in sizes], -3))
    heads = torch.split(tensor, 1, -3)
    chunks, first = [], 0
    for size in sizes:
        chunks.append(heads[first // group])
        first += size
    return chunks


def _run(
    plan: Optional[Plan],
    torch_call: TorchCall,
    arguments: Arguments,
    join: Join,
    order: Order = None,
) -> torch.Tensor:
    if plan is None:
        query, key, value, mask, options = arguments
        return torch_call(query, key, value, mask, **options)
    if plan.axis == CONTIGUOUS:
        whole = _run(plan.inner, torch_call, copied(plan, arguments), join, order)
        return whole if plan.inner or order is None else _lie(whole, order)
    parts = (_run(plan.inner, torch_call, chunk, join) for chunk in split(plan, arguments))
    return join(parts, plan.sizes, DIMS[plan.axis], order)


def _order_of_result(plan: Plan, arguments: Arguments) -> Order:
    """The order of the dimensions of the whole call's result, where the parts' is another.

    FlashAttention, on CUDA and on the CPU, lays its result out as the query, which may be copied.
    """
    if "query" not in plan.copies:
        return None
    query = arguments.query
    if query.device.type == "cpu" and not torch_private.CPU_FLASH_FOLLOWS_QUERY:
        return None
    # torch does not choose for stand-ins as it will for what they stand for.
    asks = not (is_compiling(query) or is_stand_in(query))
    if asks and torch_answers.choice(arguments).backends != {FLASH}:
        return None
    return _outer_first(query)


def _lie(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The tensor with its dimensions in that order in memory."""
    return tensor.permute(order).contiguous().permute(_inverse(order))


def _inverse(order: list[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]


def _join(
    parts: Iterator[torch.Tensor], sizes: tuple[int, ...], dim: int, order: Order
) -> torch.Tensor:
    """One concatenation that keeps the parts' order of dimensions in memory, or has its own."""
    whole = list(parts)
    order = _outer_first(whole[0]) if order is None else order
    joined = torch.cat([part.permute(order) for part in whole], order.index(dim % len(order)))
    return joined.permute(_inverse(order))


def _fill(
    parts: Iterator[torch.Tensor], sizes: tuple[int, ...], dim: int, order: Order
) -> torch.Tensor:
    """The same, but frees each part before it makes the next."""
    part = next(parts)
    order = _outer_first(part) if order is None else order
    shape = list(part.shape)
    shape[dim] = sum(sizes)
    whole = part.new_empty([shape[d] for d in order])
    whole = whole.permute(_inverse(order))
    places = iter(whole.split_with_sizes(sizes, dim))
    next(places).copy_(part)
    for place in places:
        del part
        part = next(parts)
        place.copy_(part)
    return whole


def _can_fill(arguments: Arguments) -> bool:
    """Whether nothing sees a change in place: no gradient, no tracer, no mode."""
    wants_gradient = any(tensor.requires_grad for tensor in tensors_of(arguments))
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
