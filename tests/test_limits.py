"""The registry says what the kernels' source and the measurements say."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch
from helpers.inside import (
    Release,
)
from helpers.lowered import BY_ID
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import LIMITS, SDPAGuard, check


def counted(limit_id: str, *shape: int, **facts: object) -> int:
    verdict = check(*shape, torch_version="any", **facts)
    return next(f.counted for f in verdict.findings if f.limit.id == limit_id)


def test_ids_and_names_are_unique():
    assert len({limit.id for limit in LIMITS}) == len({limit.name for limit in LIMITS})
    assert len(LIMITS) == len(BY_ID)


@pytest.mark.parametrize(
    ("head_dim", "padded"),
    [(1, 32), (16, 32), (32, 32), (33, 64), (72, 96), (128, 128), (129, 192), (200, 256)],
)
def test_the_head_dim_is_padded_as_the_kernel_pads_it(head_dim, padded):
    assert counted("F1", 1, 1, 128, head_dim) == 128 * padded


@pytest.mark.parametrize(("seq_q", "rows"), [(1, 128), (128, 128), (129, 256)])
def test_rows_are_counted_in_tiles_of_128(seq_q, rows):
    assert counted("F1", 1, 1, seq_q, 32) == rows * 32


@pytest.mark.parametrize(
    ("limit_id", "shape", "release", "facts"),
    [
        ("F1", (2**31 // (8 * 128 * 64), 8, 128, 64), "2.9.0", {}),
        ("F1p", (2**31 // (8 * 128 * 64), 8, 128, 64), "2.11.0", {}),
        ("F2b", (65535, 1, 8, 8), "2.14.0", {}),
        ("E1", (65535, 1, 8, 8), "2.7.0", {}),
        ("E2", (65535, 1, 8, 8), "2.8.0", {"dropout_p": 0.1}),
        ("E3", (65535, 1, 8, 8), "2.8.0", {"mask": True, "mask_requires_grad": True}),
        ("C1", (65535, 1, 8, 8), "2.12.0", {}),
    ],
)
def test_the_largest_safe_batch(limit_id, shape, release, facts):
    backend = (BY_ID[limit_id].backend,)
    inside = check(*shape, torch_version=release, backends=backend, **facts)
    batch = shape[0] + (2 if limit_id == "F1p" else 1)
    beyond = check(batch, *shape[1:], torch_version=release, backends=backend, **facts)
    assert inside.ok
    assert limit_id in [f.limit.id for f in beyond.findings if f.over]


@pytest.mark.parametrize(
    ("limit_id", "first", "last"),
    [
        ("F1", 3, 10),
        ("F1p", 11, 11),
        ("F2b", 3, 14),
        ("F5", 3, 14),
        ("E8", 3, 14),
        ("E1", 3, 7),
        ("E2", 8, 14),
        ("E5", 3, 7),
        ("E6", 3, 12),
        ("E7b", 3, 13),
        ("C1", 5, 12),
    ],
)
def test_the_releases_that_have_it(limit_id, first, last):
    having = [minor for minor in range(3, 15) if BY_ID[limit_id].affects(Release(2, minor))]
    assert having == list(range(first, last + 1))
    # A release that nobody has read has every limit without a known fix.
    assert BY_ID[limit_id].affects(Release(2, 99)) == (limit_id in ("F5", "E8"))


def test_limits_and_verdicts_can_be_sent_to_other_processes():
    assert pickle.loads(pickle.dumps(LIMITS)) == LIMITS
    verdict = check(400, 4, 10496, 128, torch_version="2.9.0")
    assert str(pickle.loads(pickle.dumps(verdict))) == str(verdict)


def test_one_batch_entry_is_always_inside_the_2_11_bound():
    verdict = check(1, 64, 2**20, 128, backends=["flash"], torch_version="2.11.0")
    assert "F1p" not in [f.limit.id for f in verdict.findings if f.over]


def test_a_dropout_offset_of_one_entry_counts_from_2_to_the_31():
    facts = {"dropout_p": 0.1, "backends": ("efficient",), "torch_version": "2.12.0"}
    inside = check(1, 32768, 256, 8, seq_k=256, **facts)
    beyond = check(1, 32769, 256, 8, seq_k=256, **facts)
    assert inside.ok
    assert [f.limit.id for f in beyond.findings if f.over] == ["E7b"]


@pytest.mark.parametrize(("batch", "split"), [(1, True), (4, True)])
def test_one_query_row_without_backward_counts_key_value_heads(batch, split):
    """pytorch's mha_fwd moves the groups into the rows; with a backward it cannot."""
    facts = {"kv_heads": 1000, "seq_k": 8, "backends": ("flash",), "torch_version": "2.14.0"}
    assert check(batch, 70000, 1, 8, requires_grad=False, **facts).ok
    assert check(batch, 70000, 1, 8, requires_grad=True, **facts).ok is not split


def strided(batch: int, heads: int, length: int, dim: int, row: int) -> torch.Tensor:
    packed = torch.empty(batch, length, row, dtype=torch.bfloat16, device="meta")
    return packed[..., : heads * dim].unflatten(-1, (heads, dim)).transpose(1, 2)


@pytest.mark.parametrize("which", ["key", "value"])
def test_a_wide_row_stride_is_cured_by_a_copy(which):
    plain = torch.empty(1, 8, 2**17, 64, dtype=torch.bfloat16, device="meta")
    wide = strided(1, 8, 2**17, 64, 2**14)
    key, value = (wide, plain) if which == "key" else (plain, wide)
    with SDPAGuard(torch_version="2.14.0") as guard:
        scaled_dot_product_attention(plain, key, value)
    assert guard.report.as_dict()["sites"][0]["plan"]["axis"] == "contiguous"
    with SDPAGuard(torch_version="2.14.0") as guard:
        scaled_dot_product_attention(plain, key.contiguous(), value.contiguous())
    assert guard.report.split == 0


def test_a_wide_query_row_stride_is_cured_by_a_copy_of_the_query():
    query = torch.empty_strided((1, 1, 2, 8), (0, 0, 2**31, 1), dtype=torch.half, device="meta")
    key = torch.empty(1, 1, 8, 8, dtype=torch.half, device="meta")
    with SDPAGuard() as guard:
        scaled_dot_product_attention(query, key, key)
    assert guard.report.as_dict()["sites"][0]["plan"]["copies"] == ["query"]


def test_the_stride_of_a_dimension_of_size_one_is_no_copys_to_cure():
    """torch calls such a tensor contiguous, and its kernels refuse it (E11)."""
    query = torch.empty_strided((1, 1, 2, 8), (0, 2**31, 8, 1), dtype=torch.half, device="meta")
    key = torch.empty(1, 1, 8, 8, dtype=torch.half, device="meta")
    assert query.is_contiguous()
    with pytest.warns(UserWarning, match="E11"), SDPAGuard() as guard:
        scaled_dot_product_attention(query, key, key)
    assert (guard.report.split, guard.report.unsplittable) == (0, 1)


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 1, 6, 8), (48, 4000, 8, 1)), ((2, 2, 1, 8), (16, 8, 4000, 1))]
)
def test_a_copy_that_changes_nothing_is_no_cure(shape, strides):
    key = torch.empty_strided(shape, strides, dtype=torch.half, device="meta")
    query = torch.empty(shape, dtype=torch.half, device="meta")
    assert key.is_contiguous()
    lowered = [dataclasses.replace(BY_ID["E11"], bound=100)]
    with pytest.warns(UserWarning, match="E11"), SDPAGuard(limits=lowered) as guard:
        scaled_dot_product_attention(query, key, key)
    assert (guard.report.split, guard.report.unsplittable) == (0, 1)


def test_head_strides_are_cured_by_splitting_heads():
    query = torch.empty(1, 40, 2**19, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
    with SDPAGuard(torch_version="2.14.0") as guard:
        scaled_dot_product_attention(query, query, query)
    plan = guard.report.as_dict()["sites"][0]["plan"]
    assert (plan["axis"], plan["sizes"]) == ("heads", [20, 20])


def test_one_query_row_on_expanded_heads_is_cured_by_a_copy():
    query = torch.empty(2, 65, 1, 64, dtype=torch.bfloat16, device="meta")
    key = torch.empty(2, 1, 50, 64, dtype=torch.bfloat16, device="meta").expand(2, 65, 50, 64)
    with SDPAGuard(torch_version="2.13.0") as guard:
        scaled_dot_product_attention(query, key, key)
    assert guard.report.as_dict()["sites"][0]["plan"]["axis"] == "contiguous"
    with SDPAGuard(torch_version="2.14.0") as guard:
        scaled_dot_product_attention(query, key, key)
    assert guard.report.split == 0


def test_a_mask_broadcast_over_the_rows_has_no_row_stride():
    query = torch.empty(1, 1, 70000, 8, dtype=torch.bfloat16, device="meta")
    mask = torch.empty(1, 1, 1, 70000, dtype=torch.bool, device="meta")
    with SDPAGuard() as guard:
        scaled_dot_product_attention(query, query, query, mask)
        assert guard.report.split == 0
        scaled_dot_product_attention(query, query, query, mask.expand(1, 1, 70000, 70000).clone())
        assert guard.report.split == 1


def test_a_lowered_limit_is_made_with_replace():
    lowered = dataclasses.replace(BY_ID["F2b"], bound=3)
    query = torch.empty(7, 1, 8, 8, dtype=torch.bfloat16, device="meta")
    with SDPAGuard(limits=[lowered]) as guard:
        scaled_dot_product_attention(query, query, query)
    assert guard.report.as_dict()["sites"][0]["plan"]["sizes"] == [3, 2, 2]


def test_a_bound_is_at_least_one():
    with pytest.raises(ValueError, match="bound must be 1 or more, not 0"):
        dataclasses.replace(BY_ID["F2b"], bound=0)


def test_rows_are_split_without_a_copy_of_an_expanded_head():
    query = torch.empty(1, 64, 70000, 64, dtype=torch.half, device="meta")
    key = torch.empty(1, 1, 70000, 64, dtype=torch.half, device="meta").expand(1, 64, 70000, 64)
    mask = torch.empty(70000, 70000, dtype=torch.half, device="meta")
    with SDPAGuard(torch_version="2.9.0") as guard:
        scaled_dot_product_attention(query, key, key, mask)
    plan = guard.report.as_dict()["sites"][0]["plan"]
    assert (plan["axis"], plan["sizes"]) == ("rows", [35000, 35000])
