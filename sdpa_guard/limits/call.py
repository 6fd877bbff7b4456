"""The facts of one attention call that limits and backends ask for."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Final, Literal, NamedTuple, Optional

import torch

from .mask import BiasStrides, Mask, dense

Axis = Literal["batch", "heads", "rows"]
#: The tensors that a copy can cure.
Copied = Literal["query", "key", "value"]

BATCH: Final = "batch"
HEADS: Final = "heads"
ROWS: Final = "rows"
#: The axes that a call can be split along, in the order in which they are tried.
AXES: tuple[Axis, ...] = (BATCH, HEADS, ROWS)
#: Not an axis: the plan that copies some of query, key and value into contiguous memory.
CONTIGUOUS: Final = "contiguous"
TENSORS: tuple[Copied, ...] = ("query", "key", "value")

#: Where each axis lies in query, key, value and mask, counted from the last dimension.
DIMS = {BATCH: -4, HEADS: -3, ROWS: -2}


class Strides(NamedTuple):
    """Elements between two heads, two rows and two batch entries of a tensor (batch, heads,
    length, dim)."""

    head: int
    row: int
    batch: int


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
    mask: Optional[Mask] = None
    #: Those of query, key and value that want a gradient and have a stride of 0.
    expanded_grads: frozenset[Copied] = frozenset()
    #: Of the inputs, only the mask wants a gradient.
    only_mask_grad: bool = False
    #: How many calls ``torch.vmap`` folds into the batch of this one; ``batch`` includes them.
    lanes: int = 1
    #: torch.compile or torch.export traces it.
    is_traced: bool = False

    @property
    def bias(self) -> BiasStrides:
        """The strides of what the efficient kernel reads of the mask; 0 without one."""
        return _NO_BIAS if self.mask is None else self.mask.bias(self.heads, self.seq_q)

    @property
    def mask_row_stride(self) -> int:
        """Elements between two rows of the bias; 0 without a mask, and where it is broadcast."""
        return self.bias.row

    @property
    def mask_requires_grad(self) -> bool:
        return self.mask is not None and self.mask.requires_grad

    @property
    def saves_sums(self) -> bool:
        """Whether the forward writes each row's sum for the backward; not for a mask's sake."""
        return self.needs_backward and not self.only_mask_grad

    @property
    def group(self) -> int:
        """The query heads of one key/value head."""
        return self.heads // self.kv_heads

    def strides(self, tensor: Copied) -> Strides:
        strides: Strides = getattr(self, f"{tensor}_strides")
        return strides

    def length(self, axis: Axis) -> int:
        """Batch entries of one lane, query heads, or query rows."""
        if axis == BATCH:
            return self.batch // self.lanes
        return self.heads if axis == HEADS else self.seq_q

    def take(self, axis: Axis, length: int) -> Call:
        """The call on a part of the axis. Slices keep their parent's strides.

        Along the heads, ``length`` is a multiple of the group, or a part of one group.
        """
        mask = None if self.mask is None else self.mask.cut(DIMS[axis], length)
        if axis == BATCH:
            return dataclasses.replace(self, batch=length * self.lanes, mask=mask)
        if axis == HEADS:
            kv_heads = max(1, length // self.group)
            return dataclasses.replace(self, heads=length, kv_heads=kv_heads, mask=mask)
        return dataclasses.replace(self, seq_q=length, mask=mask)

    def shape(self, tensor: Copied) -> tuple[int, int, int, int]:
        """(batch, heads, length, dim), the batch of one lane."""
        batch = self.batch // self.lanes
        if tensor == "query":
            return batch, self.heads, self.seq_q, self.head_dim
        dim = self.head_dim if tensor == "key" else self.value_dim
        return batch, self.kv_heads, self.seq_k, dim

    def is_contiguous(self, tensor: Copied) -> bool:
        """As torch has it: the strides of dimensions of size one do not matter."""
        batch, heads, length, _ = shape = self.shape(tensor)
        strides, wanted = self.strides(tensor), contiguous(*shape)
        return (
            (length == 1 or strides.row == wanted.row)
            and (heads == 1 or strides.head == wanted.head)
            and (batch == 1 or strides.batch == wanted.batch)
        )

    def with_copies(self, tensors: tuple[Copied, ...]) -> Call:
        """The call after these are made contiguous; those that are contiguous stay as they are."""
        strides = {
            f"{tensor}_strides": contiguous(*self.shape(tensor))
            for tensor in tensors
            if not self.is_contiguous(tensor)
        }
        expanded = frozenset([t for t in self.expanded_grads if t not in tensors])
        return dataclasses.replace(self, expanded_grads=expanded, **strides)  # type: ignore[arg-type]

    def with_numbers(self, number: Callable[[Any], int] = int) -> Call:
        """The call with plain numbers for symbolic sizes: a split is traced for one shape.

        ``number`` makes one of a size or a stride.
        """
        mask = self.mask
        if mask is not None:
            mask = mask._replace(
                shape=tuple([number(size) for size in mask.shape]),
                strides=tuple([number(stride) for stride in mask.strides]),
            )
        return dataclasses.replace(
            self,
            batch=number(self.batch),
            heads=number(self.heads),
            kv_heads=number(self.kv_heads),
            seq_q=number(self.seq_q),
            seq_k=number(self.seq_k),
            head_dim=number(self.head_dim),
            value_dim=number(self.value_dim),
            query_strides=_numbers(self.query_strides, number),
            key_strides=_numbers(self.key_strides, number),
            value_strides=_numbers(self.value_strides, number),
            mask=mask,
        )

    def __str__(self) -> str:
        kv = f" kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        seq_k = f" seq_k={self.seq_k}" if self.seq_k != self.seq_q else ""
        mask = "" if self.mask is None else " mask"
        dropout = f" dropout={self.dropout_p:g}" if self.dropout_p else ""
        causal = " causal" if self.is_causal else ""
        dtype = str(self.dtype).replace("torch.", "")
        shape = f"{self.batch}x{self.heads}x{self.seq_q}x{self.head_dim}"
        return f"{shape} {dtype}{kv}{seq_k}{mask}{dropout}{causal}"


def call_of_sizes(
    batch: int,
    heads: int,
    seq_q: int,
    head_dim: int,
    *,
    seq_k: int,
    kv_heads: int,
    dtype: torch.dtype = torch.bfloat16,
    mask: Optional[Mask] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    needs_backward: bool = True,
    query_strides: Optional[Strides] = None,
    key_strides: Optional[Strides] = None,
    value_strides: Optional[Strides] = None,
) -> Call:
    """The facts of a CUDA call of these sizes; what has no strides given is contiguous."""
    query = (batch, heads, seq_q)
    keys = (batch, kv_heads, seq_k)
    strides = {
        "query": query_strides or contiguous(*query, head_dim),
        "key": key_strides or contiguous(*keys, head_dim),
        "value": value_strides or contiguous(*keys, head_dim),
    }
    expanded = {t for t in TENSORS if is_expanded(query if t == "query" else keys, strides[t])}
    return Call(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        value_dim=head_dim,
        dtype=dtype,
        device_type="cuda",
        dropout_p=dropout_p,
        is_causal=is_causal,
        needs_backward=needs_backward,
        query_strides=strides["query"],
        key_strides=strides["key"],
        value_strides=strides["value"],
        mask=mask,
        expanded_grads=frozenset(expanded if needs_backward else ()),
    )


def contiguous(batch: int, heads: int, length: int, dim: int) -> Strides:
    """The strides of a contiguous (batch, heads, length, dim) tensor."""
    by_batch, by_head, by_row, _ = dense((batch, heads, length, dim))
    return Strides(by_head, by_row, by_batch)


def is_expanded(sizes: tuple[int, int, int], strides: Strides) -> bool:
    """Whether several batch entries, heads or rows share their memory."""
    batch, heads, length = sizes
    by_batch = batch > 1 and strides.batch == 0
    return by_batch or (heads > 1 and strides.head == 0) or (length > 1 and strides.row == 0)


_NO_BIAS = BiasStrides(0, 0)


def _numbers(strides: Strides, number: Callable[[Any], int]) -> Strides:
    return Strides(number(strides.head), number(strides.row), number(strides.batch))
