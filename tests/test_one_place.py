"""Facts that must stand in several places, held together."""

from __future__ import annotations

import doctest
import re
import types
from pathlib import Path

import pytest
import torch
from helpers.inside import (
    BACKENDS,
    RELEASES,
    Call,
    Strides,
    call_of_sizes,
    kernel_blocks,
    padded_head_dim,
    plain_mask,
    round_up,
    rules_of,
    takes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import sdpa_guard
from sdpa_guard import LIMITS
from sdpa_guard.testing import record_calls

ROOT = Path(__file__).parent.parent

EDGES = st.sampled_from([2**16 - 1, 2**16, 2**20, 2**31])
SIZES = st.one_of(st.just(1), st.integers(1, 300), EDGES)
HEAD_DIMS = st.one_of(st.sampled_from([64, 128]), st.integers(1, 300))


STRIDES = st.builds(Strides, st.integers(0, 2**33), st.integers(1, 2**33), st.integers(0, 2**40))


@st.composite
def calls(draw: st.DrawFn) -> Call:
    kv_heads, seq_q, seq_k = draw(SIZES), draw(SIZES), draw(SIZES)
    mask = plain_mask(seq_q, seq_k, draw(st.booleans())) if draw(st.booleans()) else None
    call = call_of_sizes(
        draw(SIZES),
        kv_heads * draw(st.integers(1, 4)),
        seq_q,
        draw(HEAD_DIMS),
        seq_k=seq_k,
        kv_heads=kv_heads,
        dtype=draw(st.sampled_from([torch.bfloat16, torch.float32])),
        mask=mask,
        dropout_p=draw(st.sampled_from([0.0, 0.1])),
        is_causal=draw(st.booleans()),
        needs_backward=draw(st.booleans()),
        query_strides=draw(st.none() | STRIDES),
        key_strides=draw(st.none() | STRIDES),
        value_strides=draw(st.none() | STRIDES),
    )
    return call


def names(call: Call) -> dict[str, object]:
    """What the names in a limit's formula stand for."""
    strides = (call.query_strides, call.key_strides, call.value_strides)
    return {
        "batch": call.batch,
        "heads": call.heads,
        "kv_heads": call.kv_heads,
        "seq_q": call.seq_q,
        "seq_k": call.seq_k,
        "value_dim": call.value_dim,
        "head": call.seq_q * call.seq_k % 2**32,
        "entry": call.heads * call.seq_q * call.seq_k % 2**32,
        "entries": min(call.batch, 65535),
        "padded_head_dim": padded_head_dim(call.head_dim),
        "round_up": round_up,
        "last_start": kernel_blocks.last_start,
        "max": max,
        "backward": call.needs_backward,
        "saves_sums": call.needs_backward and not call.only_mask_grad,
        "dropout": call.dropout_p > 0,
        "is_causal": call.is_causal,
        "compiled": False,
        "nested": False,
        "expanded_gradient": bool(call.expanded_grads),
        "mask": call.mask is not None,
        "mask_requires_grad": call.mask_requires_grad,
        "mask_row_stride": call.bias.row,
        "mask_head_stride": call.bias.head,
        "mask_gradient_row": call.mask.gradient_row() if call.mask else 0,
        "query_row_stride": call.query_strides.row,
        "query_head_stride": call.query_strides.head,
        "key_row_stride": call.key_strides.row,
        "value_row_stride": call.value_strides.row,
        "kv_head_stride": max(call.key_strides.head, call.value_strides.head),
        "head_strides": [stride.head for stride in strides],
        "row_strides": [stride.row for stride in strides],
        "forward_block": kernel_blocks.efficient_forward_rows(call)[-1],
        "backward_block": kernel_blocks.efficient_backward_block(call),
        "query_step": max(
            [0, *(n for n in kernel_blocks.flash_backward_rows(call) if n < call.seq_q)]
        ),
        "key_step": max(
            [0, *(n for n in kernel_blocks.flash_forward_keys(call) if n < call.seq_k)]
        ),
    }


#: What these count takes a page: the model of the kernels holds them to it.
TOLD_IN_WORDS = {"E8", "F5s", "E12", "E12a", "E12b", "E13", "E15"}


@settings(deadline=None)
@given(calls())
def test_a_limit_counts_what_its_formula_says(call):
    for limit in LIMITS:
        if limit.id in TOLD_IN_WORDS:
            continue
        said = eval(limit.formula, {"__builtins__": {}}, names(call))
        assert limit.counted(call) == said, limit


@settings(deadline=None)
@given(calls())
def test_releases_of_the_same_rules_let_a_backend_take_the_same(call):
    for backend in BACKENDS:
        for before, after in zip(RELEASES, RELEASES[1:]):
            if rules_of(before) == rules_of(after):
                assert takes(backend, call, before) == takes(backend, call, after)


def test_every_supported_release_has_its_tests():
    tox = (ROOT / "tox.ini").read_text()
    minors = [f"{release.major}.{release.minor}" for release in RELEASES]
    (label,) = re.findall(r"^ *all-torch = (.*)$", tox, re.MULTILINE)
    assert label.split(", ") == [f"torch{minor}" for minor in minors]
    pinned = re.findall(r"^ *torch([\d.]+): torch==([\d.]+)$", tox, re.MULTILINE)
    assert [env for env, _ in pinned] == minors
    assert all(version.startswith(f"{env}.") for env, version in pinned)


def test_the_metadata_and_the_readme_name_the_oldest_release():
    oldest = f"{RELEASES[0].major}.{RELEASES[0].minor}"
    assert f'"torch>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    assert f"torch {oldest} or later" in (ROOT / "README.md").read_text()


PUBLIC = {name: getattr(sdpa_guard, name) for name in sdpa_guard.__all__}
PUBLIC["record_calls"] = record_calls
#: Those that a program is not given by itself: it meets them as errors and warnings.
ERRORS = {name for name, value in PUBLIC.items() if name.endswith(("Error", "Warning"))}


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - ERRORS - {"LIMITS"}))
def test_every_public_name_has_an_example_that_runs(name):
    public = PUBLIC[name]
    text = getattr(public, "__wrapped__", public).__doc__
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - ERRORS - {"LIMITS"}))
def test_a_public_function_says_what_it_returns(name):
    public = getattr(PUBLIC[name], "__wrapped__", PUBLIC[name])
    if isinstance(public, types.FunctionType) and public.__annotations__["return"] != "None":
        assert re.search(r"Returns:|Whether ", public.__doc__)


def test_the_tests_add_one_name_to_the_import_path():
    """A package of theirs once hid the `kernels` that transformers looks for."""
    assert [found.parent.name for found in (ROOT / "tests").glob("*/__init__.py")] == ["helpers"]
