"""One attention call's facts, read off its arguments once."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Optional

import torch
from torch._guards import TracingContext

from .release import RUNNING_TORCH, Release

BATCH, HEADS, ROWS = "batch", "heads", "rows"
#: The axes that a call can be split along, in the order in which they are tried.
AXES = (BATCH, HEADS, ROWS)
#: Not an axis: the plan that copies key and value into contiguous memory.
CONTIGUOUS = "contiguous"

# torch.nn.Buffer makes plain tensors, so these two are every ordinary type.
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_FAKE = ("FakeTensor", "FunctionalTensor")
# torch 2.14 runs (N, L, E) as one batch entry of N heads; earlier releases never fuse it.
_FUSES_3D = Release(2, 14) <= RUNNING_TORCH
# torch 2.14 also repeats a single key/value head without being asked to by enable_gqa.
_REPEATS_ONE_HEAD = _FUSES_3D
# torch 2.3 has one autocast function for each device type instead.
_AUTOCAST_BY_DEVICE = Release(2, 4) <= RUNNING_TORCH


class Arguments(NamedTuple):
    """The arguments of one call under the names of torch's signature."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: Optional[torch.Tensor]
    #: Those of dropout_p, is_causal, scale and enable_gqa that were given.
    options: dict[str, Any]


class Strides(NamedTuple):
    """Elements between two heads and between two rows of a (batch, heads, length, dim) tensor."""

    head: int
    row: int


@dataclasses.dataclass(frozen=True)
class Call:
    """The facts of one ``scaled_dot_product_attention`` call that limits and backends ask for.

    Shapes are counted in elements: query (batch, heads, seq_q, head_dim), key (batch, kv_heads,
    seq_k, head_dim), value (batch, kv_heads, seq_k, value_dim).
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    value_dim: int
    #: What the kernel is given: after autocast.
    dtype: torch.dtype
    device_type: str
    dropout_p: float
    is_causal: bool
    #: Grad mode is on and some input requires grad.
    needs_backward: bool
    query_strides: Strides
    key_strides: Strides
    value_strides: Strides
    #: None without a mask; 0 where the mask is broadcast over the query rows.
    mask_row_stride: Optional[int] = None
    mask_requires_grad: bool = False
    #: How many calls ``torch.vmap`` folds into the batch of this one; ``batch`` includes them.
    lanes: int = 1
    #: Key and value are one head, expanded (stride 0) over all heads.
    expanded_kv: bool = False

    def units(self, axis: str) -> int:
        """How many indivisible pieces the axis has: batch entries, key/value groups, query rows."""
        if axis == BATCH:
            return self.batch // self.lanes
        return self.kv_heads if axis == HEADS else self.seq_q

    def unit(self, axis: str) -> int:
        """The length of one such piece as the caller counts it: a group is several query heads."""
        return self.heads // self.kv_heads if axis == HEADS else 1

    def least(self, axis: str) -> int:
        """The fewest pieces that a chunk along the axis is made of."""
        # One row on an expanded head is another kernel's path, with a limit of its own (E12).
        avoids_one_row = axis == ROWS and self.expanded_kv and not self.needs_backward
        return min(2, self.seq_q) if avoids_one_row else 1

    def take(self, axis: str, units: int) -> Call:
        """The call on ``units`` pieces of the axis. Slices keep their parent's strides."""
        if axis == BATCH:
            return dataclasses.replace(self, batch=units * self.lanes)
        if axis == HEADS:
            return dataclasses.replace(self, heads=units * self.unit(HEADS), kv_heads=units)
        return dataclasses.replace(self, seq_q=units)

    def with_contiguous_kv(self) -> Call:
        """The call after key and value are copied into contiguous memory."""
        return dataclasses.replace(
            self,
            key_strides=contiguous(self.seq_k, self.head_dim),
            value_strides=contiguous(self.seq_k, self.value_dim),
            expanded_kv=False,
        )

    def with_numbers(self) -> Call:
        """The call with plain numbers for symbolic sizes: a split is traced for one shape."""
        return dataclasses.replace(
            self,
            batch=int(self.batch),
            heads=int(self.heads),
            kv_heads=int(self.kv_heads),
            seq_q=int(self.seq_q),
            seq_k=int(self.seq_k),
            head_dim=int(self.head_dim),
            value_dim=int(self.value_dim),
        )

    def __str__(self) -> str:
        kv = f" kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        seq_k = f" seq_k={self.seq_k}" if self.seq_k != self.seq_q else ""
        mask = "" if self.mask_row_stride is None else " mask"
        dropout = f" dropout={self.dropout_p:g}" if self.dropout_p else ""
        causal = " causal" if self.is_causal else ""
        dtype = str(self.dtype).replace("torch.", "")
        shape = f"{self.batch}x{self.heads}x{self.seq_q}x{self.head_dim}"
        return f"{shape} {dtype}{kv}{seq_k}{mask}{dropout}{causal}"


def contiguous(length: int, dim: int) -> Strides:
    """The strides of a contiguous (batch, heads, length, dim) tensor."""
    return Strides(head=length * dim, row=dim)


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


def read(arguments: Arguments, device_types: tuple[str, ...]) -> Optional[Call]:
    """The facts of a plain attention call on one of the devices; None for any other call.

    Plain: ordinary strided tensors on one device, 4-D (3-D too where torch fuses it), nothing of
    size zero, one batch size, whole groups of query heads per key/value head, and a mask that
    broadcasts. What is not plain never reaches a fused kernel, is wrong (torch says how), or is
    somebody's own tensor type.
    """
    query, key, value, mask, options = arguments
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    if not all(map(_is_ordinary, tensors)):
        return None
    device = query.device
    if device.type not in device_types or any(t.device != device for t in tensors):
        return None
    dims = query.dim()
    if not (dims == 4 or (dims == 3 and _FUSES_3D)):
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
        repeats = options.get("enable_gqa", False) or (_REPEATS_ONE_HEAD and kv_heads == 1)
        if not repeats or heads % kv_heads != 0:
            return None
    if mask is not None and not _broadcasts(mask.shape, (batch, heads, seq_q, seq_k)):
        return None
    if not query.dtype == key.dtype == value.dtype:
        return None
    dtype = _dtype_after_autocast(query)
    cast = dtype != query.dtype
    lanes = _lanes(tensors)
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
        needs_backward=torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
        query_strides=_strides(query, cast),
        key_strides=_strides(key, cast),
        value_strides=_strides(value, cast),
        mask_row_stride=None if mask is None else _mask_row_stride(mask, seq_k),
        mask_requires_grad=mask is not None and mask.requires_grad,
        lanes=lanes,
        expanded_kv=heads > 1 and not cast and key.stride(-3) == 0 == value.stride(-3),
    )


def is_compiling(tensor: torch.Tensor) -> bool:
    """Whether torch.compile or torch.export is tracing this call."""
    if torch.compiler.is_compiling():
        return True
    return is_fake(tensor) and TracingContext.try_get() is not None


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no data."""
    return is_stand_in(tensor) or tensor.device.type == "meta"


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Whether the tensor is of a type that stands for others, as those that torch traces with."""
    return type(tensor) not in _ORDINARY


def autocast_dtype(kind: str) -> Optional[torch.dtype]:
    """What autocast casts to on "cpu" or "cuda"; None where it is off."""
    if _AUTOCAST_BY_DEVICE:
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if kind == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def _is_ordinary(tensor: Any) -> bool:
    kind = type(tensor)
    if kind not in _ORDINARY and not (
        kind.__name__ in _FAKE and kind.__module__.startswith("torch._subclasses.")
    ):
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
        strides = _dense_strides(tensor.shape, strides)
    return Strides(head=strides[-3], row=strides[-2])


def _dense_strides(shape: torch.Size, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a copy that keeps the memory order and leaves out the gaps."""
    dense, step = list(strides), 1
    for dim in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        dense[dim] = step
        step *= shape[dim]
    return tuple(dense)


def _mask_row_stride(mask: torch.Tensor, seq_k: int) -> int:
    """Elements between two rows of the bias that the efficient kernel is given.

    torch makes a new tensor of a boolean mask, and of one whose rows are not aligned to 8 elements,
    with the rows padded (https://github.com/pytorch/pytorch/issues/147585: 46344 needs no padding).
    """
    if mask.dim() < 2 or mask.shape[-2] == 1:
        return 0
    as_given = mask.dtype is not torch.bool and mask.shape[-1] == seq_k
    row = mask.stride(-2) if as_given else seq_k
    return row if row % 8 == 0 else padded_mask_row(seq_k)


def padded_mask_row(seq_k: int) -> int:
    """The row of a mask of seq_k columns after torch's padding to 8 elements."""
    return seq_k if seq_k % 8 == 0 else seq_k + 8 - seq_k % 8


def _lanes(tensors: tuple[torch.Tensor, ...]) -> int:
    """How many calls ``torch.vmap`` runs in this one, over all its levels."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is None:
        return 1
    most = 1
    for tensor in tensors:
        lanes = 1
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            inner = torch._C._functorch.get_unwrapped(tensor)
            if torch._C._functorch.is_batchedtensor(tensor):
                lanes *= inner.shape[torch._C._functorch.maybe_get_bdim(tensor)]
            tensor = inner
        most = max(most, lanes)
    return most
