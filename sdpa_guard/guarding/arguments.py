"""A call's arguments as torch takes them, and the facts that are read off them."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from .. import torch_private
from ..limits.call import TENSORS, Call, Copied, Strides, is_expanded
from ..limits.mask import Mask, dense_in_order

# torch.nn.Buffer makes plain tensors, so these two are every ordinary type.
_ORDINARY = (torch.Tensor, torch.nn.Parameter)


class Arguments(NamedTuple):
    """The arguments of one call under the names of torch's signature."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: Optional[torch.Tensor]
    #: Those of dropout_p, is_causal, scale and enable_gqa that were given.
    options: dict[str, Any]


def tensors_of(arguments: Arguments) -> tuple[torch.Tensor, ...]:
    """Query, key, value, and the mask if there is one."""
    # Dynamo, in torch 2.9, traces no property of a named tuple.
    query, key, value, mask, _ = arguments
    return (query, key, value) if mask is None else (query, key, value, mask)


def bind(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: Any = None,
    is_causal: Any = None,
    **options: Any,
) -> Arguments:
    """Sort positional and keyword arguments as torch's own signature does.

    Raises TypeError where torch's parser would.
    """
    if dropout_p is not None:
        options["dropout_p"] = dropout_p
    if is_causal is not None:
        options["is_causal"] = is_causal
    return Arguments(query, key, value, attn_mask, options)


def read(
    arguments: Arguments, device_types: tuple[str, ...], is_traced: bool = False
) -> Optional[Call]:
    """The facts of a plain attention call on one of the devices; None for any other call.

    Plain: ordinary strided tensors on one device, 4-D (3-D too where torch fuses it), nothing of
    size zero, one batch size, whole groups of query heads per key/value head, and a mask that
    broadcasts. What is not plain never reaches a fused kernel, is wrong (torch says how), or is
    somebody's own tensor type.
    """
    query, key, value, mask, options = arguments
    tensors = tensors_of(arguments)
    if not all(map(_is_ordinary, tensors)):
        return None
    device = query.device
    if device.type not in device_types or any(t.device != device for t in tensors):
        return None
    dims = query.dim()
    if not (dims == 4 or (dims == 3 and torch_private.FUSES_3D)):
        return None
    if key.dim() != dims or value.dim() != dims:
        return None
    heads, seq_q, head_dim = query.shape[-3:]
    kv_heads, seq_k, key_dim = key.shape[-3:]
    batch, kv_batch = (query.shape[0], key.shape[0]) if dims == 4 else (1, 1)
    value_dim = value.shape[-1]
    if batch != kv_batch or key_dim != head_dim or value.shape[:-1] != key.shape[:-1]:
        return None
    if query.numel() == 0 or key.numel() == 0 or value.numel() == 0:
        return None
    dropout_p = options.get("dropout_p", 0.0)
    if not isinstance(dropout_p, (int, float)):
        return None
    if heads != kv_heads:
        repeats = options.get("enable_gqa", False) or (
            torch_private.REPEATS_ONE_HEAD and kv_heads == 1
        )
        if not repeats or heads % kv_heads != 0:
            return None
    if mask is not None and not _broadcasts(mask.shape, (batch, heads, seq_q, seq_k)):
        return None
    if not query.dtype == key.dtype == value.dtype:
        return None
    dtype = _dtype_after_autocast(query)
    cast = dtype != query.dtype
    lanes = _lanes(tensors)
    grad_mode = torch.is_grad_enabled()
    strides = {name: _strides(tensor, cast) for name, tensor in zip(TENSORS, (query, key, value))}
    wanting: list[Copied] = [
        name for name, tensor in zip(TENSORS, tensors) if grad_mode and tensor.requires_grad
    ]
    masks_gradient = grad_mode and mask is not None and mask.requires_grad
    sizes = {"query": (batch, heads, seq_q)}
    expanded = [
        name
        for name in wanting
        if is_expanded(sizes.get(name, (batch, kv_heads, seq_k)), strides[name])
    ]
    return Call(
        batch=batch * lanes,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=dtype,
        device_type=device.type,
        dropout_p=dropout_p,
        is_causal=bool(options.get("is_causal", False)),
        needs_backward=bool(wanting) or masks_gradient,
        query_strides=strides["query"],
        key_strides=strides["key"],
        value_strides=strides["value"],
        mask=None if mask is None else _mask(mask, masks_gradient),
        expanded_grads=frozenset(expanded),
        only_mask_grad=masks_gradient and not wanting,
        lanes=lanes,
        is_traced=is_traced,
    )


def is_compiling(tensor: torch.Tensor) -> bool:
    """Whether torch.compile or torch.export is tracing this call."""
    if torch.compiler.is_compiling():
        return True
    return is_fake(tensor) and torch_private.tracing_context() is not None


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no data."""
    return is_stand_in(tensor) or tensor.device.type == "meta"


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Whether the tensor is of a type that stands for others, as those that torch traces with."""
    return type(tensor) not in _ORDINARY


def autocast_dtype(kind: str) -> Optional[torch.dtype]:
    """What autocast casts to on "cpu" or "cuda"; None where it is off."""
    if torch_private.AUTOCAST_BY_DEVICE:
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def _is_ordinary(tensor: Any) -> bool:
    kind = type(tensor)
    if kind not in _ORDINARY and not torch_private.is_torchs_stand_in(kind):
        return False
    # is_nested comes first: a nested tensor refuses to tell its layout's sizes.
    return not tensor.is_nested and tensor.layout is torch.strided


def _broadcasts(shape: torch.Size, target: tuple[int, ...]) -> bool:
    if len(shape) > len(target):
        return False
    return all(have in (1, want) for have, want in zip(reversed(shape), reversed(target)))


def _dtype_after_autocast(tensor: torch.Tensor) -> torch.dtype:
    if tensor.dtype is torch.float64 or not tensor.is_floating_point():
        return tensor.dtype
    # Autocast never touches meta tensors, yet a rehearsal asks what CUDA would do.
    return autocast_dtype("cpu" if tensor.device.type == "cpu" else "cuda") or tensor.dtype


def _strides(tensor: torch.Tensor, cast: bool) -> Strides:
    strides = tensor.stride()
    if cast:
        strides = dense_in_order(tuple(tensor.shape), tuple(strides))
    batch = strides[-4] if len(strides) == 4 else tensor.shape[0] * strides[0]
    return Strides(head=strides[-3], row=strides[-2], batch=batch)


def _mask(mask: torch.Tensor, wants_gradient: bool) -> Mask:
    if mask.dim() == 0:
        return Mask((1,), (1,), mask.dtype is torch.bool, wants_gradient)
    shape, strides = tuple(mask.shape), tuple(mask.stride())
    if mask.dtype is not torch.bool and _dtype_after_autocast(mask) != mask.dtype:
        strides = dense_in_order(shape, strides)
    return Mask(shape, strides, mask.dtype is torch.bool, wants_gradient)


def _lanes(tensors: tuple[torch.Tensor, ...]) -> int:
    """How many calls ``torch.vmap`` runs in this one, over all its levels."""
    if torch.compiler.is_compiling() or torch_private.innermost_transform() is None:
        return 1
    most = 1
    for tensor in tensors:
        lanes = 1
        while torch_private.is_wrapped_by_transform(tensor):
            inner = torch_private.unwrapped(tensor)
            if torch_private.is_batched(tensor):
                lanes *= inner.shape[torch_private.batch_dim(tensor)]
            tensor = inner
        most = max(most, lanes)
    return most
