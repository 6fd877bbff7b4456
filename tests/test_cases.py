"""The publicly reported shapes: tests/data/cases.csv names each report."""

from __future__ import annotations

import pytest
import torch
from helpers.lowered import BY_ID
from helpers.measured import CASES
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import LIMITS, SDPAGuard
from sdpa_guard.testing import record_calls

#: musubi-tuner#1089: the value was a view of a packed tensor with this row stride.
PACKED_ROW = 21504


def tensors_of(case: dict[str, str]) -> tuple[torch.Tensor, ...]:
    batch, heads, seq_q, seq_k, dim = (
        int(case[k]) for k in ("batch", "heads", "seq_q", "seq_k", "head_dim")
    )
    kind = {
        "dtype": getattr(torch, case["dtype"]),
        "device": "meta",
        "requires_grad": case["pass"] == "backward",
    }
    query = torch.empty(batch, heads, seq_q, dim, **kind)
    key = torch.empty(batch, heads, seq_k, dim, **kind)
    value = torch.empty(batch, heads, seq_k, dim, **kind)
    if case["id"] == "musubi-1089":
        packed = torch.empty(batch, seq_k, PACKED_ROW, **kind)
        value = packed[..., : heads * dim].unflatten(-1, (heads, dim)).transpose(1, 2)
    return query, key, value


def mask_of(case: dict[str, str]) -> torch.Tensor | None:
    if case["mask"] == "no":
        return None
    return torch.empty(int(case["seq_q"]), int(case["seq_k"]), dtype=torch.bool, device="meta")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
@pytest.mark.parametrize("policy", ["split", "raise"])
def test_the_reported_shape_is_cured_or_named(case, policy):
    query, key, value = tensors_of(case)
    mask = mask_of(case)
    limit = BY_ID[case["expected_limit"]]
    limits = [known for known in LIMITS if known.backend == case["backend"]]
    guard = SDPAGuard(policy, limits=limits)
    if policy == "raise":
        with guard, pytest.raises(RuntimeError, match=rf"\b{limit.id}\b"):
            scaled_dot_product_attention(query, key, value, mask)
        return
    with record_calls() as calls, guard:
        out = scaled_dot_product_attention(query, key, value, mask)
    assert out.shape == query.shape
    assert (guard.report.split, guard.report.unsplittable) == (1, 0)
    if limit.id == "E8":
        # The cure is a copy of key and value, no split: one call over contiguous memory.
        assert len(calls) == 1
        assert guard.report.as_dict()["sites"][0]["plan"]["axis"] == "contiguous"
        return
    assert len(calls) == guard.report.chunks == fewest_chunks(case)
    axis = {"batch": 0, "heads": 1, "rows": 2}[guard.report.as_dict()["sites"][0]["plan"]["axis"]]
    assert sum(call.query[axis] for call in calls) == query.shape[axis]


def fewest_chunks(case: dict[str, str]) -> int:
    """By hand, from the report: how many chunks bring the shape inside."""
    batch, heads = int(case["batch"]), int(case["heads"])
    if case["expected_limit"] == "F1":
        padded = 128 if case["head_dim"] == "128" else 96
        return -(-batch // (2**31 // (heads * 128 * padded)))
    if case["expected_limit"] in ("E5", "E6"):
        return 2
    return -(-max(batch, heads) // 65535)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_of_zero_passes_through(batch):
    query = torch.empty(batch, 6, 12, 32, dtype=torch.bfloat16, device="meta")
    with SDPAGuard() as guard:
        out = scaled_dot_product_attention(query, query, query)
    assert out.shape == query.shape
    assert guard.report.calls == batch


@pytest.mark.parametrize(
    ("length", "over"), [(46344, False), (46353, True)], ids=["46344 passes", "the next fails"]
)
def test_the_measured_edge_of_the_backward_mask_offset(length, over):
    """pytorch#147585: 46344 squared passes on torch up to 2.7.1, larger ones fail."""
    query = torch.empty(1, 3, length, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
    mask = torch.empty(length, length, dtype=torch.bool, device="meta")
    with SDPAGuard(torch_version="2.6.0") as guard:
        scaled_dot_product_attention(query, query, query, mask)
    assert guard.report.split == over


@pytest.mark.parametrize(("length", "over"), [(65536, False), (65537, True)])
def test_the_measured_edge_of_the_forward_mask_offset(length, over):
    """pytorch#162588: on torch 2.9.0 65536 squared is right, 65537 silently wrong."""
    query = torch.empty(1, 1, length, 64, dtype=torch.bfloat16, device="meta")
    mask = torch.empty(length, length, dtype=torch.bool, device="meta")
    with SDPAGuard(torch_version="2.9.0") as guard:
        scaled_dot_product_attention(query, query, query, mask)
    assert guard.report.split == over
