"""One attention step to measure: its facts."""

from __future__ import annotations

import dataclasses
from typing import Optional

import torch

from ..limits.call import Call, Strides, call_of_sizes, contiguous
from ..limits.limit import Limit
from ..limits.mask import plain_mask
from ..limits.registry import LIMITS
from ..limits.rounding import round_up

_BY_ID = {limit.id: limit for limit in LIMITS}


@dataclasses.dataclass(frozen=True)
class Trial:
    """One attention step to measure; ``dataclasses.asdict`` makes JSON of it."""

    #: The id of the limit that it is about.
    limit: str
    batch: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    #: The name of a torch dtype.
    dtype: str
    backward: bool
    #: Query heads for each key/value head.
    group: int = 1
    #: With a float mask of seq_q rows and seq_k columns.
    mask: bool = False
    mask_requires_grad: bool = False
    dropout_p: float = 0.0
    #: Elements between two heads and two rows of key and value, which then share their memory;
    #: None: both are contiguous.
    kv_head_stride: Optional[int] = None
    kv_row_stride: Optional[int] = None
    #: Each query row looks at one of the last keys: a mean of many would hide a wrong one. Without
    #: a backward, whose gradients would be next to nothing.
    focused: bool = False

    @property
    def entry(self) -> Limit:
        """The registry's entry of its limit."""
        return _BY_ID[self.limit]

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def call(self) -> Call:
        """The facts that the limits ask for."""
        keys = self._key_strides()
        mask = plain_mask(self.seq_q, self.seq_k, self.mask_requires_grad) if self.mask else None
        return call_of_sizes(
            self.batch,
            self.heads,
            self.seq_q,
            self.head_dim,
            seq_k=self.seq_k,
            kv_heads=self.kv_heads,
            dtype=getattr(torch, self.dtype),
            mask=mask,
            dropout_p=self.dropout_p,
            needs_backward=self.backward,
            key_strides=keys,
            value_strides=keys,
        )

    @property
    def shared_memory(self) -> int:
        """The elements of the memory that strided key and value share."""
        return self.batch * self._key_strides().batch

    def kv_strides(self) -> tuple[int, int, int, int]:
        """The strides of key and value, in elements, where they are not contiguous."""
        strides = self._key_strides()
        return (strides.batch, strides.head, strides.row, 1)

    def _key_strides(self) -> Strides:
        if self.kv_head_stride is None or self.kv_row_stride is None:
            return contiguous(self.batch, self.kv_heads, self.seq_k, self.head_dim)
        last = (self.kv_heads - 1) * self.kv_head_stride + (self.seq_k - 1) * self.kv_row_stride
        batch = round_up(last + 2 * self.head_dim, 8)
        return Strides(head=self.kv_head_stride, row=self.kv_row_stride, batch=batch)

    def __str__(self) -> str:
        strides = ""
        if self.kv_head_stride is not None:
            strides = f" kv_strides={self.kv_head_stride},{self.kv_row_stride}"
        gradient = " with gradient" if self.mask_requires_grad else ""
        return f"{self.call}{gradient}{strides}{'' if self.backward else ' forward only'}"
