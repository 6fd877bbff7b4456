"""The plan: the fewest balanced chunks, compared with brute force over random calls."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from helpers.inside import (
    RELEASES,
    Call,
    contiguous,
    cure,
    exceeded,
)
from helpers.lowered import BY_ID
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_guard import LIMITS, check


def make_call(batch, heads, kv_heads, seq_q, **facts) -> Call:
    strides = contiguous(16, 8)
    call = Call(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=16,
        head_dim=8,
        value_dim=8,
        dtype=torch.bfloat16,
        device_type="cuda",
        dropout_p=0.0,
        is_causal=False,
        needs_backward=True,
        query_strides=contiguous(seq_q, 8),
        key_strides=strides,
        value_strides=strides,
    )
    return dataclasses.replace(call, **facts)


def parts(length: int, chunks: int) -> int:
    return -(-length // chunks)


def chunk(call: Call, counts: tuple[int, int, int]) -> Call:
    """The largest chunk when the call is split that often along batch, heads and rows."""
    group = call.heads // call.kv_heads
    kv_heads = parts(call.kv_heads, counts[1])
    return dataclasses.replace(
        call,
        batch=parts(call.batch, counts[0]),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=parts(call.seq_q, counts[2]),
    )


def brute_force(call: Call, fits) -> int | None:
    """The fewest chunks: along the batch where that is enough, else over all axes together."""
    for batch_chunks in range(1, call.batch + 1):
        if fits(chunk(call, (batch_chunks, 1, 1))):
            return batch_chunks
    rows = 1 if call.is_causal else call.seq_q
    ranges = (range(1, n + 1) for n in (call.batch, call.kv_heads, rows))
    counts = [c for c in itertools.product(*ranges) if fits(chunk(call, c))]
    return min(map(math.prod, counts), default=None)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_plan_is_as_short_as_brute_force_finds(data):
    small = st.integers(1, 7)
    kv_heads, group = data.draw(small), data.draw(st.sampled_from([1, 1, 2, 3]))
    call = make_call(
        data.draw(small),
        kv_heads * group,
        kv_heads,
        data.draw(st.sampled_from([1, 2, 5, 130, 200])) if data.draw(st.booleans()) else 4,
        is_causal=data.draw(st.booleans()),
    )
    if call.is_causal:
        call = dataclasses.replace(call, seq_k=call.seq_q)
    lowered = {
        "F1": data.draw(st.integers(128 * 32, 128 * 32 * 40)),
        "F2b": data.draw(st.integers(1, 8)),
        "F2h": data.draw(st.integers(1, 20)),
        "F4a": data.draw(st.integers(1, 400)),
    }
    chosen = data.draw(st.sets(st.sampled_from(sorted(lowered)), min_size=1))
    limits = [dataclasses.replace(BY_ID[i], bound=lowered[i]) for i in sorted(chosen)]

    def fits(part: Call) -> bool:
        return not exceeded(part, limits, RELEASES)

    if fits(call):
        return
    if call.seq_q > 10 and call.batch * call.kv_heads > 20:
        call = dataclasses.replace(call, batch=min(call.batch, 3))
    if fits(call):
        return
    plan = cure(call, limits, RELEASES)
    assert (plan and len(plan)) == brute_force(call, fits)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 10**6),
    heads=st.integers(1, 64),
    seq_q=st.integers(1, 10**5),
    head_dim=st.integers(1, 256),
    is_causal=st.booleans(),
)
def test_every_plan_covers_its_axis_in_balanced_chunks(batch, heads, seq_q, head_dim, is_causal):
    verdict = check(batch, heads, seq_q, head_dim, is_causal=is_causal, torch_version="any")
    plan, length = verdict.plan, {"batch": batch, "heads": heads, "rows": seq_q}
    assert verdict.ok or plan is not None or is_causal
    while plan is not None:
        assert sum(plan.sizes) == length.pop(plan.axis)
        assert max(plan.sizes) - min(plan.sizes) <= 1
        assert not (is_causal and plan.axis == "rows")
        plan = plan.inner


def test_heads_are_split_when_one_batch_entry_is_too_big():
    plan = check(2, 64, 2**19, 128, torch_version="2.9.0").plan
    assert (plan.axis, plan.sizes) == ("batch", (1, 1))
    assert (plan.inner.axis, plan.inner.sizes) == ("heads", (32, 32))
    assert len(plan) == 4
    assert str(plan) == "2 calls of 1 batch entry, each 2 calls of 32 heads"


def test_whole_key_value_groups_stay_together():
    plan = check(1, 64, 2**19, 128, kv_heads=2, torch_version="2.9.0").plan
    assert (plan.axis, plan.sizes) == ("heads", (32, 32))


def test_query_rows_are_split_last():
    plan = check(1, 1, 2**25, 128, backends=["flash"], torch_version="2.9.0").plan
    assert (plan.axis, plan.sizes) == ("rows", (2**24, 2**24))


def test_a_causal_call_is_never_split_along_its_rows():
    verdict = check(1, 1, 2**25, 128, is_causal=True, torch_version="2.9.0")
    assert not verdict.ok
    assert verdict.plan is None
    assert "no split cures it" in str(verdict)


def test_a_contiguous_copy_is_split_where_it_is_over_another_limit():
    rows = 1_300_000
    seq_first = contiguous(16, 128)._replace(head=128, row=16 * 128)
    call = make_call(
        1, 16, 16, 64, seq_k=rows, head_dim=128, value_dim=128,
        key_strides=seq_first, value_strides=seq_first,
    )  # fmt: skip
    assert {found.limit.id for found in exceeded(call, LIMITS, RELEASES)} == {"E8"}
    assert (
        str(cure(call, LIMITS, RELEASES))
        == "key and value made contiguous, then 2 calls of 8 heads"
    )


def test_one_row_on_expanded_heads_is_copied_and_split():
    call = make_call(
        1, 64, 64, 1, seq_k=2**20, head_dim=128, value_dim=128, needs_backward=False,
        expanded_kv=True,
        key_strides=contiguous(2**20, 128)._replace(head=0),
        value_strides=contiguous(2**20, 128)._replace(head=0),
    )  # fmt: skip
    assert {found.limit.id for found in exceeded(call, LIMITS, RELEASES)} == {"E12"}
    plan = cure(call, LIMITS, RELEASES)
    assert (plan.axis, plan.inner.axis) == ("contiguous", "heads")


def test_millions_of_calls_are_no_plan():
    judged = [dataclasses.replace(BY_ID["F2b"], bound=1)]
    assert len(cure(make_call(2**20, 1, 1, 1), judged, RELEASES)) == 2**20
    assert cure(make_call(2**20 + 1, 1, 1, 1), judged, RELEASES) is None


def test_several_limits_are_one_plan():
    verdict = check(70000, 70000, 1, 8, backends=["flash"], torch_version="2.14.0")
    over = {finding.limit.id for finding in verdict.findings if finding.over}
    assert over == {"F2b", "F2h", "F4a", "F4b"}
    axes = {verdict.plan.axis, verdict.plan.inner.axis}
    assert axes == {"batch", "heads"}


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.id)
def test_a_cure_lowers_what_its_limit_counts(limit):
    """A limit's cures are exactly the axes whose split lowers its count."""
    facts = {"dropout_p": 0.1, "mask_row_stride": 16, "mask_requires_grad": True}
    if limit.id == "E12":
        facts = {"needs_backward": False, "expanded_kv": True}
    if limit.id in ("E8", "E11"):
        facts["key_strides"] = contiguous(16, 8000)
    lowers = set()
    for batch, heads in ((4, 64), (64, 4)):
        call = make_call(batch, heads, heads, 1 if limit.id == "E12" else 640, **facts)
        smaller = {axis: call.take(axis, 1) for axis in ("batch", "heads", "rows")}
        smaller["contiguous"] = call.with_contiguous_kv()
        lowers |= {
            cure for cure, part in smaller.items() if limit.counted(part) < limit.counted(call)
        }
    if limit.id == "E12":
        lowers.discard("heads")  # fewer heads than a tile do not cure it for certain
    assert set(limit.cures) == lowers
