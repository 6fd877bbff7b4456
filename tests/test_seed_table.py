"""The measured shapes: tests/data/seed_table.csv, https://github.com/PriorLabs/TabPFN/issues/1184.

Measured there on torch 2.9.0 with FlashAttention, in bfloat16, forward and backward.
"""

from __future__ import annotations

import pytest
import torch
from helpers.measured import SEED_TABLE
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import SDPAGuard, check
from sdpa_guard.testing import record_calls

each_row = pytest.mark.parametrize(
    "row",
    SEED_TABLE,
    ids=lambda row: "x".join(row[k] for k in ("batch", "heads", "seq_q", "head_dim")),
)


def shape_of(row: dict[str, str]) -> tuple[int, int, int, int]:
    return int(row["batch"]), int(row["heads"]), int(row["seq_q"]), int(row["head_dim"])


def query_of(row: dict[str, str], requires_grad: bool = True) -> torch.Tensor:
    return torch.empty(
        shape_of(row), dtype=torch.bfloat16, device="meta", requires_grad=requires_grad
    )


@each_row
@pytest.mark.parametrize("torch_version", [None, "2.9.0"])
def test_a_training_step_is_split_exactly_where_it_failed(row, torch_version):
    query = query_of(row)
    with record_calls() as calls, SDPAGuard(torch_version=torch_version) as guard:
        out = scaled_dot_product_attention(query, query, query)
        out.sum().backward()
    assert out.shape == query.grad.shape == query.shape
    workspaces = [c.query[0] * c.query[1] * c.query[2] * max(c.query[3], 32) for c in calls]
    assert max(workspaces) <= 2**31
    assert sum(c.query[0] for c in calls) == query.shape[0]
    if row["backward"] == "ok":
        assert len(calls) == 1
        assert guard.report.split == 0
    else:
        # The fewest: one chunk less would leave one of them over the bound.
        batch = query.shape[0]
        largest = -(-batch // (len(calls) - 1))
        assert int(row["counted"]) // batch * largest > 2**31
        assert guard.report.split == 1
        assert guard.report.chunks == len(calls)


@each_row
def test_the_count_is_the_measured_one(row):
    verdict = check(*shape_of(row), torch_version="2.9.0", backends=["flash"])
    counted = next(f.counted for f in verdict.findings if f.limit.id == "F1")
    assert counted == int(row["counted"])
    assert verdict.ok == (row["backward"] == "ok")


@each_row
def test_one_call_where_flash_is_off(row):
    query = query_of(row)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]), SDPAGuard() as guard:
        scaled_dot_product_attention(query, query, query)
    assert (guard.report.calls, guard.report.split) == (1, 0)


@each_row
@pytest.mark.parametrize("how", ["no input requires grad", "no_grad", "inference_mode"])
def test_one_call_where_no_backward_follows(row, how):
    query = query_of(row, requires_grad=how == "no_grad")
    with SDPAGuard() as guard:
        if how == "inference_mode":
            with torch.inference_mode():
                scaled_dot_product_attention(query, query, query)
        else:
            with torch.set_grad_enabled(how != "no_grad"):
                scaled_dot_product_attention(query, query, query)
    assert (guard.report.calls, guard.report.split) == (1, 0)


@each_row
def test_one_call_on_a_release_without_the_bound(row):
    query = query_of(row)
    with SDPAGuard(torch_version="2.12.0") as guard:
        scaled_dot_product_attention(query, query, query)
    assert (guard.report.calls, guard.report.split) == (1, 0)
