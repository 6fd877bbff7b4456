"""Attention calls to try: every layout, mask and option, and how far each is over a limit."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Callable, Optional

import torch
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from helpers.inside import (
    RUNNING_TORCH,
    Arguments,
    Release,
)
from helpers.lowered import BATCH, CONTIGUOUS, HEADS, NESTED, ROWS, lowered
from sdpa_guard import SDPAGuard

HAS_GQA = Release(2, 5) <= RUNNING_TORCH
#: Earlier the CPU kernel reads past such a mask: https://github.com/pytorch/pytorch/pull/128816.
TAKES_ONE_MASK_COLUMN = Release(2, 5) <= RUNNING_TORCH
SPLITS = (BATCH, HEADS, ROWS, NESTED)
INPUTS = ("query", "key", "value", "mask")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

#: (batch, heads, length, dim) tensors as models lay them out in memory; ``make`` makes the leaf.
LAYOUTS: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": lambda make, b, h, s, d: make(b, h, s, d),
    "length before heads": lambda make, b, h, s, d: make(b, s, h, d).transpose(1, 2),
    "length first": lambda make, b, h, s, d: make(s, b, h, d).permute(1, 2, 0, 3),
    "dim before length": lambda make, b, h, s, d: make(b, h, d, s).transpose(2, 3),
    "expanded batch": lambda make, b, h, s, d: make(1, h, s, d).expand(b, h, s, d),
    "expanded heads": lambda make, b, h, s, d: make(b, 1, s, d).expand(b, h, s, d),
    "expanded length": lambda make, b, h, s, d: make(b, h, 1, d).expand(b, h, s, d),
    "one for all": lambda make, b, h, s, d: make(1, s, h, d).transpose(1, 2).expand(b, h, s, d),
    "sliced": lambda make, b, h, s, d: make(b + 1, h + 1, s + 2, d + 3)[1:, :-1, 1:-1, 3:],
}
#: Masks of a shape that broadcasts, or of that shape expanded to all its dimensions.
MASK_LAYOUTS: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": lambda make, shape, full: make(*shape),
    "expanded": lambda make, shape, full: make(*shape).expand(full),
    "reversed": lambda make, shape, full: make(*shape[::-1]).permute(
        tuple(range(len(shape)))[::-1]
    ),
    "sliced": lambda make, shape, full: make(*(n + 1 for n in shape))[
        (slice(1, None),) * len(shape)
    ],
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention call, and how far it is over: chunks of ``size`` units of the axis fit."""

    axis: str = BATCH
    size: int = 1
    batch: int = 2
    heads: int = 2
    kv_heads: int = 2
    seq_q: int = 3
    seq_k: int = 3
    head_dim: int = 4
    value_dim: int = 4
    dtype: torch.dtype = torch.float64
    #: Of query, key and value; or they are one "packed" tensor's views, or the "same" tensor.
    layouts: tuple[str, ...] = ("contiguous",) * 3
    mask_kind: Optional[str] = None  # "bool", "float" (the query's dtype) or "float32"
    mask_shape: tuple[int, ...] = ()
    mask_layout: str = "contiguous"
    is_causal: bool = False
    scale: Optional[float] = None
    needs_grad: frozenset[str] = frozenset(INPUTS)
    grad_mode: str = "enable_grad"

    def options(self) -> dict[str, Any]:
        gqa = {"enable_gqa": True} if self.heads != self.kv_heads else {}
        return {"is_causal": self.is_causal, "scale": self.scale, **gqa}

    def guard(self) -> SDPAGuard:
        bound = self.size
        if self.axis in (HEADS, NESTED):
            bound *= self.heads // self.kv_heads
        if self.axis == CONTIGUOUS:
            bound = self.seq_k * max(self.head_dim, self.value_dim)
        return SDPAGuard(limits=lowered(self.axis, bound), device_types=("cpu",))

    def fewest_chunks(self) -> int:
        if self.axis == CONTIGUOUS:
            return 1
        if self.axis != NESTED:
            units = {BATCH: self.batch, HEADS: self.kv_heads, ROWS: self.seq_q}[self.axis]
            return math.ceil(units / self.size)
        return min(
            b * h
            for b, h in itertools.product(range(1, self.batch + 1), range(1, self.kv_heads + 1))
            if math.ceil(self.batch / b) * math.ceil(self.kv_heads / h) <= self.size
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    axis = draw(st.sampled_from([*SPLITS, CONTIGUOUS]))
    # No fused kernel takes such a key; its copy would go to another kernel than the key itself.
    known = sorted(LAYOUTS.keys() - ({"dim before length"} if axis == CONTIGUOUS else set()))
    one_tensor = st.sampled_from([("packed",), ("same",)])
    layouts = draw(st.tuples(*[st.sampled_from(known)] * 3) | one_tensor)
    lengths, dims = st.integers(1, 9), st.integers(1, 16)
    batch = draw(st.integers(2 if axis == BATCH else 1, 6))
    kv_heads = draw(st.integers(2 if axis in (HEADS, NESTED) else 1, 6))
    group = draw(st.integers(1, 6 // kv_heads)) if HAS_GQA and layouts != ("same",) else 1
    seq_q = draw(st.integers(2, 9) if axis == ROWS else lengths)
    seq_k = seq_q if len(layouts) == 1 else draw(lengths)
    head_dim = draw(dims)
    value_dim = head_dim if len(layouts) == 1 else draw(st.just(head_dim) | dims)
    mask_kind = draw(st.sampled_from([None, "bool", "float", "float32"]))
    full = (batch, kv_heads * group, seq_q, seq_k)[draw(st.integers(0, 4)) :]
    mask_shape = tuple(draw(st.sampled_from([1, n])) for n in full) if mask_kind else ()
    if mask_shape and not TAKES_ONE_MASK_COLUMN:
        mask_shape = (*mask_shape[:-1], seq_k)
    units = {BATCH: batch, ROWS: seq_q}.get(axis, kv_heads)
    return Case(
        axis=axis,
        size=draw(st.integers(1, max(1, units - 1))),
        batch=batch,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=draw(st.sampled_from(DTYPES)),
        layouts=layouts,
        mask_kind=mask_kind,
        mask_shape=mask_shape,
        mask_layout=draw(st.sampled_from(sorted(MASK_LAYOUTS))),
        is_causal=mask_kind is None and axis != ROWS and draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.5, -1.5])),
        needs_grad=draw(st.just(frozenset(INPUTS)) | st.frozensets(st.sampled_from(INPUTS))),
        grad_mode=draw(st.sampled_from(["enable_grad"] * 4 + ["no_grad", "inference_mode"])),
    )


def build(case: Case) -> tuple[list[torch.Tensor], Arguments]:
    """The leaves, and the call's arguments made of them; the same numbers every time."""
    torch.manual_seed(0)
    leaves: list[torch.Tensor] = []

    def maker(name: str) -> Callable[..., torch.Tensor]:
        def make(*shape: int) -> torch.Tensor:
            leaf = torch.randn(shape, dtype=case.dtype)
            if name == "mask":
                kept = torch.rand(shape) < 0.8
                dtype = torch.float32 if case.mask_kind == "float32" else case.dtype
                masked = leaf.to(dtype).masked_fill(~kept, -math.inf)
                leaf = kept if case.mask_kind == "bool" else masked
            leaf.requires_grad_(name in case.needs_grad and leaf.is_floating_point())
            leaves.append(leaf)
            return leaf

        return make

    b, h, kv = case.batch, case.heads, case.kv_heads
    if case.layouts == ("packed",):
        packed = maker("query")(b, case.seq_q, h + 2 * kv, case.head_dim).transpose(1, 2)
        query, key, value = packed.split([h, kv, kv], dim=1)
    elif case.layouts == ("same",):
        query = key = value = maker("query")(b, h, case.seq_q, case.head_dim)
    else:
        of_query, of_key, of_value = (LAYOUTS[layout] for layout in case.layouts)
        query = of_query(maker("query"), b, h, case.seq_q, case.head_dim)
        key = of_key(maker("key"), b, kv, case.seq_k, case.head_dim)
        value = of_value(maker("value"), b, kv, case.seq_k, case.value_dim)
    mask = None
    if case.mask_kind is not None:
        full = (b, h, case.seq_q, case.seq_k)[4 - len(case.mask_shape) :]
        mask = MASK_LAYOUTS[case.mask_layout](maker("mask"), case.mask_shape, full)
    return leaves, Arguments(query, key, value, mask, case.options())


def attend(arguments: Arguments) -> torch.Tensor:
    query, key, value, mask, options = arguments
    return scaled_dot_product_attention(query, key, value, mask, **options)
