"""Each limit begins where the kernels go wrong: the last call inside, and the first one beyond."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import pytest
import torch
from helpers.against_the_model import launch_of
from helpers.inside import Arguments, Call, Release, bind, exceeded, read
from helpers.kernel_model import Line, faults
from helpers.lowered import BY_ID

from sdpa_guard import LIMITS

ALL = ("query", "key", "value")
#: The model's names for the rules that the registry tells apart by release.
RULES = {"F4c": "F4a", "F5k": "F5kv", "E7c": "E7a", "E12a": "E12", "E12b": "E12"}
#: The model knows no cuDNN and no compiled code, and a plain call never has F1v.
NOT_MODELLED = {"C1", "C2", "C3", "E14"}
UNREACHABLE = {"F1v"}


@dataclasses.dataclass
class Attention:
    """A call in meta tensors; strides are of batch, heads and rows."""

    batch: int
    heads: int
    seq_q: int
    dim: int = 8
    seq_k: int = 8
    kv_heads: Optional[int] = None
    grads: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16
    strides: dict[str, tuple[int, int, int]] = dataclasses.field(default_factory=dict)
    mask: Optional[tuple[tuple[int, ...], tuple[int, ...]]] = None
    dropout_p: float = 0.0
    is_causal: bool = False
    is_traced: bool = False

    def but(self, **changes: Any) -> Attention:
        return dataclasses.replace(self, **changes)

    def arguments(self) -> Arguments:
        heads = {"query": self.heads}
        lengths = {"query": self.seq_q}
        tensors = []
        for name in ALL:
            length = lengths.get(name, self.seq_k)
            shape = (self.batch, heads.get(name, self.kv_heads or self.heads), length, self.dim)
            tensor = torch.empty(shape, device="meta", dtype=self.dtype)
            if name in self.strides:
                tensor = tensor.as_strided(shape, (*self.strides[name], 1))
            tensors.append(tensor.requires_grad_(name in self.grads))
        mask = None
        if self.mask is not None:
            shape, strides = self.mask
            mask = torch.empty_strided(shape, strides, device="meta", dtype=self.dtype)
            mask.requires_grad_("mask" in self.grads)
        options = {"dropout_p": self.dropout_p, "is_causal": self.is_causal}
        if self.kv_heads:
            options["enable_gqa"] = True
        return bind(*tensors, mask, **options)

    def call(self) -> Call:
        call = read(self.arguments(), ("meta",))
        assert call is not None
        return dataclasses.replace(call, is_traced=self.is_traced)


def mask(*shape: int, row: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A mask's shape and strides, contiguous or with rows so far apart."""
    strides, step = [1], row or shape[-1]
    for size in reversed(shape[:-1]):
        strides.insert(0, step)
        step *= size
    return shape, tuple(strides)


def rows_apart(row: int, *names: str) -> dict[str, tuple[int, int, int]]:
    return dict.fromkeys(names, (0, 0, row))


SHARED = dict.fromkeys(("key", "value"), (512, 0, 8))
PLAIN = Attention(1, 1, 1)
TRAINED = PLAIN.but(grads=ALL)
#: Id, a release that has the limit, the last call inside, the first beyond.
EDGES = [
    ("F1", 9, (a := TRAINED.but(heads=64, seq_q=2**18, dim=128)), a.but(seq_q=2**18 + 1)),
    ("F1p", 11, (a := TRAINED.but(batch=2**15, heads=8, dim=64)), a.but(batch=2**15 + 1)),
    ("F2b", 14, (a := PLAIN.but(batch=65535)), a.but(batch=65536)),
    ("F2h", 14, (a := PLAIN.but(heads=65535)), a.but(heads=65536)),
    ("F4a", 14, (a := PLAIN.but(heads=2, seq_q=2**31 - 1)), a.but(seq_q=2**31)),
    ("F4c", 4, (a := PLAIN.but(heads=2, seq_q=2**30)), a.but(seq_q=2**30 + 1)),
    ("F4b", 14, (a := TRAINED.but(heads=2, seq_q=2**30)), a.but(seq_q=2**30 + 1)),
    (
        "F5",
        14,
        (a := TRAINED.but(seq_q=129, strides=rows_apart(2**24, "query"))),
        a.but(strides=rows_apart(2**24 + 1, "query")),
    ),
    (
        "F5k",
        4,
        (a := PLAIN.but(batch=999, seq_k=129, strides=rows_apart(2**24, "key"))),
        a.but(strides=rows_apart(2**24 + 1, "key")),
    ),
    (
        "F5s",
        14,
        (a := PLAIN.but(seq_k=100_000, strides=rows_apart(2**23, "value"))),
        a.but(strides=rows_apart(2**23 + 1, "value")),
    ),
    ("E1", 7, (a := PLAIN.but(batch=65535)), a.but(batch=65536)),
    ("E2", 14, (a := PLAIN.but(batch=65535, dropout_p=0.1)), a.but(batch=65536)),
    (
        "E3",
        14,
        (a := PLAIN.but(batch=65535, mask=mask(1, 8), grads=("mask",))),
        a.but(batch=65536),
    ),
    (
        "E3b",
        14,
        (a := PLAIN.but(batch=65535, grads=("key",), strides={"key": (0, 64, 8)})),
        a.but(batch=65536),
    ),
    ("E4", 14, (a := PLAIN.but(heads=65535)), a.but(heads=65536)),
    (
        "E5",
        7,
        (a := TRAINED.but(seq_q=65, mask=mask(65, 8, row=2**25 - 8))),
        a.but(mask=mask(65, 8, row=2**25)),
    ),
    (
        "E6",
        12,
        (a := PLAIN.but(seq_q=128, mask=mask(128, 8, row=2**25))),
        a.but(seq_q=129, mask=mask(129, 8, row=2**25)),
    ),
    (
        "E7a",
        12,
        (a := TRAINED.but(seq_q=2**16, seq_k=2**16, dropout_p=0.1)),
        a.but(seq_q=2**16 + 1),
    ),
    (
        "E7c",
        7,
        (a := TRAINED.but(seq_q=2**15, seq_k=2**16, dropout_p=0.1)),
        a.but(seq_q=2**15 + 1),
    ),
    ("E7b", 13, (a := TRAINED.but(heads=2, seq_k=2**31 - 1, dropout_p=0.1)), a.but(seq_k=2**31)),
    # One key block begins at 2**31 elements; the registry counts to the last key.
    (
        "E8",
        14,
        (a := PLAIN.but(seq_k=127, strides=rows_apart(2**24, "key"))),
        a.but(seq_k=129),
    ),
    (
        "E9f",
        14,
        (a := PLAIN.but(heads=4, strides={"query": (0, (2**32 - 1) // 3, 8)})),
        a.but(strides={"query": (0, 2**32 // 3 + 1, 8)}),
    ),
    (
        "E9b",
        14,
        (a := TRAINED.but(heads=2, strides={"value": (0, 2**31 - 1, 8)})),
        a.but(strides={"value": (0, 2**31, 8)}),
    ),
    # 65534 * 65538 is 2**32 - 4.
    ("E10", 13, (a := PLAIN.but(batch=65535, seq_q=65538)), a.but(seq_q=65539)),
    ("E10", 13, (a := TRAINED.but(heads=65535, seq_q=2**16)), a.but(seq_q=2**16 + 1)),
    (
        "E11",
        14,
        (a := PLAIN.but(seq_q=2, strides=rows_apart(2**31 - 2, "query"))),
        a.but(strides=rows_apart(2**31 - 1, "query")),
    ),
    (
        "E12",
        13,
        (a := PLAIN.but(heads=8, seq_q=64, strides=SHARED, mask=mask(64, 8))),
        a.but(seq_q=65, mask=mask(65, 8)),
    ),
    ("E12", 13, (a := PLAIN.but(heads=64, strides=SHARED)), a.but(heads=65)),
    (
        "E12a",
        3,
        (a := PLAIN.but(heads=8, strides=SHARED)),
        a.but(mask=mask(1, 8)),
    ),
    (
        "E12b",
        14,
        (a := PLAIN.but(heads=2, strides=SHARED, mask=((2, 1, 8), (2**31 - 8, 8, 1)))),
        a.but(mask=((2, 1, 8), (2**31, 8, 1))),
    ),
    (
        "E13",
        7,
        (a := TRAINED.but(seq_q=65, strides=rows_apart(2**25 - 1, "query"))),
        a.but(strides=rows_apart(2**25, "query")),
    ),
    ("E14", 12, (a := TRAINED.but(batch=65535, is_traced=True)), a.but(batch=65536)),
    ("E15", 7, (a := TRAINED.but(dim=256, seq_k=41920)), a.but(seq_k=41921)),
    ("C1", 12, (a := PLAIN.but(batch=65535)), a.but(batch=65536)),
    ("C1", 12, (a := PLAIN.but(heads=65535)), a.but(heads=65536)),
    ("C2", 14, (a := TRAINED.but(seq_k=191)), a.but(seq_k=192)),
    ("C3", 14, (a := PLAIN.but(heads=4, kv_heads=2, seq_q=2)), a.but(seq_q=1)),
]


def test_every_limit_has_an_edge():
    assert {edge[0] for edge in EDGES} == {limit.id for limit in LIMITS} - UNREACHABLE


@pytest.mark.parametrize(("limit_id", "minor", "inside", "beyond"), EDGES)
def test_a_limit_has_its_edge(limit_id, minor, inside, beyond):
    limit, release = BY_ID[limit_id], Release(2, minor)
    assert not exceeded(inside.call(), [limit], (release,))
    assert exceeded(beyond.call(), [limit], (release,))


@pytest.mark.parametrize("line", list(Line), ids=str)
@pytest.mark.parametrize(
    ("limit_id", "inside", "beyond"),
    [(edge[0], edge[2], edge[3]) for edge in EDGES if edge[0] not in NOT_MODELLED],
)
def test_the_kernels_have_the_same_edge_in_every_release(limit_id, inside, beyond, line):
    rule = RULES.get(limit_id, limit_id)
    same_rule = [limit for limit in LIMITS if RULES.get(limit.id, limit.id) == rule]
    backend = BY_ID[limit_id].backend
    for attention in (inside, beyond):
        found = {fault.rule for fault in faults(launch_of(attention.arguments()), backend, line)}
        for minor in line.minors:
            release = Release(*map(int, minor.split(".")))
            over = exceeded(attention.call(), same_rule, (release,))
            assert bool(over) == (rule in found), (release, attention)
