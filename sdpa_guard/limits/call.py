"""The facts of one attention call that limits and backends ask for."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, NamedTuple, Optional

import torch

Axis = Literal["batch", "heads", "rows"]

BATCH: Final = "batch"
HEADS: Final = "heads"
ROWS: Final = "rows"
#: The axes that a call can be split along, in the order in which they are tried.
AXES: tuple[Axis, ...] = (BATCH, HEADS, ROWS)
#: Not an axis: the plan that copies key and value into contiguous memory.
CONTIGUOUS: Final = "contiguous"


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

    def units(self, axis: Axis) -> int:
        """How many indivisible pieces the axis has: batch entries, key/value groups, query rows."""
        if axis == BATCH:
            return self.batch // self.lanes
        return self.kv_heads if axis == HEADS else self.seq_q

    def unit(self, axis: Axis) -> int:
        """The length of one such piece as the caller counts it: a group is several query heads."""
        return self.heads // self.kv_heads if axis == HEADS else 1

    def least(self, axis: Axis) -> int:
        """The fewest pieces that a chunk along the axis is made of."""
        # One row on an expanded head is another kernel's path, with a limit of its own (E12).
        avoids_one_row = axis == ROWS and self.expanded_kv and not self.needs_backward
        return min(2, self.seq_q) if avoids_one_row else 1

    def take(self, axis: Axis, units: int) -> Call:
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


def call_of_sizes(
    batch: int,
    heads: int,
    seq_q: int,
    head_dim: int,
    *,
    seq_k: int,
    kv_heads: int,
    dtype: torch.dtype = torch.bfloat16,
    mask: bool = False,
    mask_requires_grad: bool = False,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    needs_backward: bool = True,
    kv_strides: Optional[Strides] = None,
) -> Call:
    """The facts of a CUDA call of these sizes.

    The query is contiguous, and so are key and value unless ``kv_strides`` says how they lie; a
    mask has seq_q rows and seq_k columns and is broadcast over batch and heads.
    """
    keys = contiguous(seq_k, head_dim) if kv_strides is None else kv_strides
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
        query_strides=contiguous(seq_q, head_dim),
        key_strides=keys,
        value_strides=keys,
        mask_row_stride=mask_row_stride(seq_q, seq_k) if mask else None,
        mask_requires_grad=mask_requires_grad,
        expanded_kv=heads > 1 and keys.head == 0,
    )


def contiguous(length: int, dim: int) -> Strides:
    """The strides of a contiguous (batch, heads, length, dim) tensor."""
    return Strides(head=length * dim, row=dim)


def mask_row_stride(rows: int, seq_k: int, given: Optional[int] = None) -> int:
    """Elements between two rows of the bias that the efficient kernel is given.

    torch makes a new tensor of a mask whose rows are not aligned to 8 elements, with the rows
    padded (https://github.com/pytorch/pytorch/issues/147585: 46344 needs no padding).

    Args:
        rows: of the mask; a single one is broadcast over the query rows.
        seq_k: the columns that the kernel reads.
        given: the row stride of the mask as it is; not given, torch makes a new tensor of it.
    """
    if rows == 1:
        return 0
    row = seq_k if given is None else given
    return row if row % 8 == 0 else padded_mask_row(seq_k)


def padded_mask_row(seq_k: int) -> int:
    """The row of a mask of seq_k columns after torch's padding to 8 elements."""
    return seq_k if seq_k % 8 == 0 else seq_k + 8 - seq_k % 8
