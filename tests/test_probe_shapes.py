"""Which shapes ``probe`` tries, and what it expects of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from helpers.inside import (
    RELEASES,
    RUNNING_TORCH,
    Call,
    Release,
    bind,
    exceeded,
    padded_head_dim,
    read,
)
from helpers.inside_probe import (
    FAILS,
    FITS,
    GUARDED,
    RECIPES,
    UNGUARDED,
    make_inputs,
    needed_gib,
    shapes,
)
from helpers.lowered import BY_ID

from sdpa_guard import LIMITS

PLENTY = 10.0**6


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_each_limit_is_tried_or_skipped_with_a_reason(release):
    found = shapes(LIMITS, release, PLENTY)
    tried = {planned.trial.limit for planned in found.planned}
    skipped = {skip.limit for skip in found.skipped}
    assert tried | skipped == {limit.id for limit in LIMITS}
    assert "F1v" in skipped
    assert {"F2b", "E4", "E8"} <= tried
    assert all(skip.reason for skip in found.skipped)


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_only_the_limit_that_is_tried_is_crossed_and_only_by_the_last_shape(release):
    for planned in shapes(LIMITS, release, PLENTY).planned:
        limit = BY_ID[planned.trial.limit]
        call = planned.trial.call
        beyond = {finding.limit.id for finding in exceeded(call, LIMITS, (release,))}
        beyond &= {other.id for other in LIMITS if other.backend == limit.backend}
        beyond -= {"E7b"} if limit.id == "E7a" else set()
        fails = limit.affects(release) and limit.counted(call) > limit.bound
        assert beyond == ({limit.id} if fails else set())
        assert planned.predicted == (FAILS if fails and planned.how == UNGUARDED else FITS)


@pytest.mark.parametrize("limit_id", ["F1", "F2b", "F2h", "E5", "E8", "E9f", "E11"])
def test_the_shapes_lie_around_the_bound(limit_id):
    limit = BY_ID[limit_id]
    planned = shapes([limit], Release(2, 7), PLENTY).planned
    found = [p.trial for p in planned if p.how == UNGUARDED]
    assert found == [p.trial for p in planned if p.how == GUARDED]
    assert len(found) % 3 == 0
    for under, at, over in zip(*(iter(found),) * 3):
        counts = [limit.counted(t.call) for t in (under, at, over)]
        assert counts[0] < counts[1] <= limit.bound < counts[2] or limit_id == "E5"
        assert counts[1] <= limit.bound < counts[2] < 1.01 * limit.bound
    assert len({t.head_dim for t in found}) > 1


def test_a_grid_bound_is_tried_to_the_entry():
    found = shapes([BY_ID["F2b"]], RUNNING_TORCH, PLENTY).planned[:6]
    assert [(planned.trial.batch, planned.how, planned.predicted) for planned in found] == [
        (65534, UNGUARDED, FITS),
        (65534, GUARDED, FITS),
        (65535, UNGUARDED, FITS),
        (65535, GUARDED, FITS),
        (65536, UNGUARDED, FAILS),
        (65536, GUARDED, FITS),
    ]


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_quick_is_three_steps_for_each_limit_that_the_release_has(release):
    found = shapes(LIMITS, release, PLENTY, quick=True)
    tried = [planned.trial.limit for planned in found.planned]
    for limit in LIMITS:
        expected = 3 if limit.id not in {skip.limit for skip in found.skipped} else 0
        assert tried.count(limit.id) == expected
        assert expected == 0 or limit.affects(release)
    assert {"F2b", "E4", "E8"} <= set(tried)
    steps = [(planned.how, planned.predicted) for planned in found.planned]
    assert steps == len(steps) // 3 * [(UNGUARDED, FITS), (UNGUARDED, FAILS), (GUARDED, FITS)]


def test_quick_tells_what_it_leaves_out():
    (skip,) = shapes([BY_ID["E6"]], Release(2, 14), PLENTY, quick=True).skipped
    assert skip.reason == "torch 2.14.0 does not have it"


def test_shapes_that_need_more_memory_are_skipped():
    found = shapes([BY_ID["F1"]], Release(2, 9), 20.0)
    assert {planned.trial.seq_q for planned in found.planned} == {1}
    assert all(needed_gib(planned.trial) <= 20 for planned in found.planned)
    assert "GiB of GPU memory, 20.0 may be used" in found.skipped[0].reason


#: No recipe makes their layouts yet, or only compiled code meets them.
UNTRIED = {"F5", "F5s", "E3b", "E14"}


@pytest.mark.parametrize("gib", [23.0, 138.0])
def test_a_card_of_24_gib_reaches_most_bounds_and_an_h200_all_but_two(gib):
    everywhere = {limit.id for limit in LIMITS if limit.affects(Release(2, 9))} - UNTRIED
    tried = {p.trial.limit for p in shapes(LIMITS, Release(2, 9), gib).planned}
    beyond = {"F1v", "F4b"} if gib > 100 else {"F1v", "F4a", "F4b", "E10"}
    assert everywhere - tried == beyond


def test_a_release_without_the_backend_for_such_calls_is_said():
    (skip,) = shapes([BY_ID["C1"]], Release(2, 4), PLENTY).skipped
    assert skip.reason == "cudnn does not take such calls on torch 2.4.0"


def test_what_crosses_another_limit_as_well_is_skipped():
    (skip,) = shapes([BY_ID["F1"]], Release(2, 11), PLENTY).skipped
    assert skip.reason == "over F1p as well on torch 2.11.0"


def test_a_child_makes_the_call_that_was_judged():
    for planned in shapes(LIMITS, Release(2, 12), PLENTY).planned:
        tried = planned.trial
        inputs = make_inputs(tried, "meta")
        options: dict[str, Any] = {"dropout_p": tried.dropout_p, "enable_gqa": tried.group > 1}
        arguments = bind(inputs.query, inputs.key, inputs.value, inputs.mask, **options)
        assert read(arguments, ("meta",)) == dataclasses.replace(tried.call, device_type="meta")


# --- The bounds as the kernels compute them, which is a little later than the limits count -------

INT32, UINT32 = 2**31, 2**32


def last_tile(length: int, tile: int = 128) -> int:
    return (length - 1) // tile * tile


def flash_rows(call: Call) -> int:
    return -(-call.seq_q // 128) * 128


#: The largest offset that a kernel computes, and where its integer type ends; by the sources that
#: the limits name.
OFFSETS = {
    "F1": (lambda c: (c.batch - 1) * flash_rows(c) * c.heads * padded_head_dim(c.head_dim), INT32),
    "F1p": (lambda c: (c.batch - 1) * flash_rows(c) * c.heads * padded_head_dim(c.head_dim), INT32),
    "F2b": (lambda c: c.batch, 65536),
    "F2h": (lambda c: c.heads if c.needs_backward else c.kv_heads, 65536),
    "F4a": (lambda c: (c.batch - 1) * c.heads * c.seq_q, INT32),
    "F4b": (lambda c: (c.batch - 1) * c.heads * c.seq_q, INT32),
    "E5": (lambda c: last_tile(c.seq_q) * c.bias.row, INT32),
    "E6": (lambda c: last_tile(c.seq_q) * c.bias.row, UINT32),
    "E7a": (lambda c: (c.seq_q - 1) * c.seq_k, UINT32),
    "E7b": (
        # The batch's part wraps in the forward, the heads' in the backward.
        lambda c: max((c.batch - 1) * c.seq_q * c.seq_k, 2 * (c.heads - 1) * c.seq_q * c.seq_k),
        UINT32,
    ),
    "E8": (lambda c: last_tile(c.seq_k) * c.key_strides.row, INT32),
    "E9f": (lambda c: (c.heads - 1) * c.key_strides.head, UINT32),
    "E9b": (lambda c: (c.heads - 1) * c.key_strides.head, INT32),
    "E10": (
        lambda c: (c.batch - 1) * (32 * c.heads if c.needs_backward else c.seq_q),
        UINT32,
    ),
    "E11": (lambda c: c.key_strides.head, INT32 - 1),
    "C1": (lambda c: max(c.batch, c.heads), 65536),
}


@pytest.mark.parametrize("limit_id", OFFSETS)
def test_the_shape_over_a_bound_is_over_the_kernels_own(limit_id):
    offset, end = OFFSETS[limit_id]
    recipes = RECIPES[limit_id]
    assert recipes
    for recipe in recipes:
        for head_dim in recipe.dims:
            around = recipe.around(BY_ID[limit_id], head_dim, "bfloat16")
            assert offset(around.at.call) < end <= offset(around.over.call)
