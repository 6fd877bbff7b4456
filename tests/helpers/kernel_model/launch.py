"""One attention call as the kernels are given it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Optional

from .widths import round_up


class Strides(NamedTuple):
    """Elements between two batch entries, two heads and two rows; a row's own elements are 1."""

    batch: int
    head: int
    row: int


@dataclasses.dataclass(frozen=True)
class Mask:
    """The mask as the user gave it, not yet expanded."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    boolean: bool = False
    requires_grad: bool = False


@dataclasses.dataclass(frozen=True)
class Launch:
    """Shapes in elements: query (batch, heads, seq_q, head_dim), key (batch, kv_heads, seq_k,
    head_dim), value (batch, kv_heads, seq_k, value_dim), with the strides that reach the kernel.

    Strides of dimensions of size one may be any number, as in torch. The scale matters to no rule.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    value_dim: int
    query: Strides
    key: Strides
    value: Strides
    itemsize: int = 2
    mask: Optional[Mask] = None
    dropout: bool = False
    is_causal: bool = False
    query_requires_grad: bool = False
    key_requires_grad: bool = False
    value_requires_grad: bool = False
    grad_mode: bool = True

    @property
    def inputs_require_grad(self) -> bool:
        return self.query_requires_grad or self.key_requires_grad or self.value_requires_grad

    @property
    def mask_requires_grad(self) -> bool:
        return self.mask is not None and self.mask.requires_grad

    @property
    def needs_logsumexp(self) -> bool:
        """Whether the efficient forward writes logsumexp: the mask does not count.

        Newer sources ask for grad mode too (PT attention.cpp, should_compute_logsumexp).
        """
        return self.grad_mode and self.inputs_require_grad

    @property
    def needs_backward(self) -> bool:
        return self.grad_mode and (self.inputs_require_grad or self.mask_requires_grad)


def contiguous(heads: int, length: int, dim: int) -> Strides:
    """The strides of a contiguous (batch, heads, length, dim) tensor."""
    return Strides(heads * length * dim, length * dim, dim)


def sequence_first(batch: int, heads: int, dim: int) -> Strides:
    """The strides of a (batch, heads, length, dim) view of a (length, batch, heads, dim) tensor."""
    return Strides(heads * dim, dim, batch * heads * dim)


def dense(
    batch: int,
    heads: int,
    seq_q: int,
    head_dim: int,
    *,
    seq_k: Optional[int] = None,
    kv_heads: Optional[int] = None,
    requires_grad: bool = False,
    **others: object,
) -> Launch:
    """A launch on contiguous tensors; any field can be given by name."""
    seq_k = seq_q if seq_k is None else seq_k
    kv_heads = heads if kv_heads is None else kv_heads
    fields: dict[str, object] = {
        "value_dim": head_dim,
        "query": contiguous(heads, seq_q, head_dim),
        "key": contiguous(kv_heads, seq_k, head_dim),
        "value": contiguous(kv_heads, seq_k, head_dim),
        "query_requires_grad": requires_grad,
        "key_requires_grad": requires_grad,
        "value_requires_grad": requires_grad,
        **others,
    }
    return Launch(batch, heads, kv_heads, seq_q, seq_k, head_dim, **fields)  # type: ignore[arg-type]


def padded_for_flash(launch: Launch) -> Launch:
    """The launch after torch padded the head dim to a multiple of 8, which makes new tensors.

    PT aten/src/ATen/native/transformers/attention.cpp (pad_last_dim); flash_api.cpp@ef3d5c9e
    checks for it.
    """
    if launch.head_dim % 8 == 0:
        return launch
    dim = round_up(launch.head_dim, 8)
    return dataclasses.replace(
        launch,
        head_dim=dim,
        value_dim=dim,
        query=contiguous(launch.heads, launch.seq_q, dim),
        key=contiguous(launch.kv_heads, launch.seq_k, dim),
        value=contiguous(launch.kv_heads, launch.seq_k, dim),
    )
