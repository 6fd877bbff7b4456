"""The plan: the fewest balanced chunks, compared with brute force over random calls."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from helpers.inside import (
    RELEASES,
    Call,
    Mask,
    Strides,
    call_of_sizes,
    cure,
    exceeded,
    plain_mask,
)
from helpers.lowered import BY_ID
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_guard import LIMITS, check


def make_call(batch, heads, kv_heads, seq_q, **facts) -> Call:
    call = call_of_sizes(batch, heads, seq_q, 8, seq_k=16, kv_heads=kv_heads)
    return dataclasses.replace(call, **facts)


def parts(length: int, chunks: int) -> int:
    return -(-length // chunks)


def chunk(call: Call, counts: tuple[int, int, int]) -> Call:
    """The largest chunk when the call is split that often along batch, heads and rows."""
    kv_heads = parts(call.kv_heads, counts[1])
    return dataclasses.replace(
        call,
        batch=parts(call.batch, counts[0]),
        # Where each group has a chunk of its own, the groups are split.
        heads=parts(call.group, max(1, counts[1] // call.kv_heads)) * kv_heads,
        kv_heads=kv_heads,
        seq_q=parts(call.seq_q, counts[2]),
    )


def brute_force(call: Call, fits) -> int | None:
    """The fewest chunks: along the batch where that is enough, else over all axes together."""
    for batch_chunks in range(1, call.batch + 1):
        if fits(chunk(call, (batch_chunks, 1, 1))):
            return batch_chunks
    rows = 1 if call.is_causal else call.seq_q
    heads = [*range(1, call.kv_heads), *(call.kv_heads * n for n in range(1, call.group + 1))]
    ranges = (range(1, call.batch + 1), heads, range(1, rows + 1))
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
    seq_first = Strides(head=128, row=16 * 128, batch=16 * 128)
    call = make_call(
        1, 16, 16, 64, seq_k=rows, head_dim=128, value_dim=128,
        key_strides=seq_first, value_strides=seq_first,
    )  # fmt: skip
    newest = RELEASES[-1:]
    assert {found.limit.id for found in exceeded(call, LIMITS, newest)} == {"E8"}
    found = str(cure(call, LIMITS, newest))
    assert found == "key and value made contiguous (9.9 GiB), then 2 calls of 8 heads"


def test_one_row_on_expanded_heads_is_copied_and_split():
    expanded = Strides(head=0, row=128, batch=2**20 * 128)
    call = make_call(
        1, 65, 65, 1, seq_k=2**20, head_dim=128, value_dim=128, needs_backward=False,
        key_strides=expanded, value_strides=expanded,
    )  # fmt: skip
    assert {found.limit.id for found in exceeded(call, LIMITS, RELEASES)} == {"E12"}
    plan = cure(call, LIMITS, RELEASES)
    # One of the two is enough for the kernel to leave that path.
    assert (plan.axis, plan.copies, plan.inner.axis) == ("contiguous", ("key",), "heads")


def test_query_heads_of_one_group_are_split_and_share_its_key_value_head():
    facts = {"is_causal": True, "torch_version": "2.9.0", "backends": ("flash",)}
    plan = check(1, 128, 131200, 128, kv_heads=1, **facts).plan
    assert (plan.axis, plan.sizes) == ("heads", (64, 64))
    plan = check(1, 128, 300000, 128, kv_heads=2, **facts).plan
    assert (plan.axis, plan.sizes) == ("heads", (32, 32, 32, 32))


def test_the_query_is_copied_for_a_step_that_no_split_shortens():
    facts = {"torch_version": "2.9.0", "backends": ("flash",), "layout": "sbhd"}
    plan = check(40000, 8, 200, 64, **facts).plan
    assert (plan.copies, plan.inner.axis, len(plan)) == (("query",), "batch", 3)
    assert plan.copied_bytes == 40000 * 8 * 200 * 64 * 2
    assert "query made contiguous (7.6 GiB), then 3 calls" in str(plan)


@pytest.mark.parametrize(
    ("shape", "facts"),
    [
        ((999983, 999983, 999983, 128), {}),
        ((999983, 999983, 999983, 128), {"kv_heads": 1, "layout": "sbhd"}),
        ((2**40, 2**40, 2**40, 128), {"layout": "packed-sbhd"}),
    ],
)
def test_a_call_of_any_size_is_refused_a_plan_in_the_end(shape, facts):
    """A search without a bound took half a minute for the first of them."""
    assert check(*shape, torch_version="any", **facts).plan is None


def test_no_chunk_goes_to_a_backend_with_a_limit_that_nothing_cures():
    """cuDNN refuses the whole call for its batch, and would take the chunks (C2)."""
    facts = {"torch_version": "2.13.0"}
    assert check(70000, 8, 64, 64, capability=(9, 0), **facts).plan is None
    assert check(70000, 8, 64, 64, **facts).plan.sizes == (35000, 35000)


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


def wide(heads: int, length: int) -> Strides:
    """Rows that lie far apart, as in a tensor of length first."""
    return Strides(head=8, row=2**14, batch=heads * length * 2**14)


KEYS = {"key_strides": wide(64, 1000), "value_strides": wide(64, 1000), "seq_k": 1000}
QUERIES = {"query_strides": wide(64, 640)}
EXPANDED = Strides(head=0, row=8, batch=128)
ONE_ROW = {
    "needs_backward": False,
    "seq_q": 1,
    "key_strides": EXPANDED,
    "value_strides": EXPANDED,
    "mask": Mask((70, 1, 16), (2**33, 16, 1)),
}
#: Calls of which every limit counts something, and each of its cures less.
SEVERAL = {
    "F5": [QUERIES],
    "F5k": [{**KEYS, "dropout_p": 0.0}],
    "F5s": [{**KEYS, "dropout_p": 0.0, "seq_q": 1, "batch": 1}],
    "E3b": [{"expanded_grads": frozenset({"key"}), "key_strides": EXPANDED}],
    "E8": [KEYS],
    "E11": [{"value_dim": 2**12}, KEYS],
    "E12": [ONE_ROW],
    "E12a": [ONE_ROW],
    "E12b": [{**ONE_ROW, "dropout_p": 0.0}],
    "E13": [{}, QUERIES],
    "E15": [{"head_dim": 128, "value_dim": 128}],
    "C2": [{"seq_k": 64}],
    "C3": [{"seq_q": 1, "kv_heads": 10}],
}
#: Splits that lower a count without curing it for certain.
BY_LUCK = {"F5": {"rows"}, "E12": {"heads"}, "E12a": {"heads"}, "E12b": {"heads"}, "C3": {"heads"}}


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.id)
def test_a_cure_lowers_what_its_limit_counts(limit):
    """A limit's cures are exactly the axes whose split, or the copies, lower its count."""
    default = {"dropout_p": 0.1, "mask": plain_mask(640, 16, requires_grad=True), "is_traced": True}
    lowers = set()
    for facts in SEVERAL.get(limit.id, [{}]):
        for batch, heads in ((4, 70), (70, 10)):
            call = make_call(batch, heads, heads, 640, **default)
            call = dataclasses.replace(call, **facts)
            parts = {axis: [call.take(axis, 1)] for axis in ("batch", "heads", "rows")}
            parts["contiguous"] = [
                call.with_copies(some) for some in (("query",), ("key", "value"))
            ]
            lowers |= {
                cure
                for cure, chunks in parts.items()
                if any(limit.counted(chunk) < limit.counted(call) for chunk in chunks)
            }
    assert set(limit.cures) == lowers - BY_LUCK.get(limit.id, set())
