"""Facts that must stand in several places, held together."""

from __future__ import annotations

import doctest
import re
import types
from pathlib import Path

import pytest
from helpers.inside import RELEASES, Call, Strides, call_of_sizes, padded_head_dim, round_up
from hypothesis import given, settings
from hypothesis import strategies as st

import sdpa_guard
from sdpa_guard import LIMITS
from sdpa_guard.testing import record_calls

ROOT = Path(__file__).parent.parent

SIZES = st.one_of(st.integers(1, 300), st.sampled_from([2**16 - 1, 2**16, 2**20, 2**31]))


@st.composite
def calls(draw: st.DrawFn) -> Call:
    kv_heads = draw(SIZES)
    strides = draw(st.none() | st.builds(Strides, st.integers(0, 2**33), st.integers(1, 2**33)))
    mask = draw(st.booleans())
    return call_of_sizes(
        draw(SIZES),
        kv_heads * draw(st.integers(1, 4)),
        draw(SIZES),
        draw(st.integers(1, 300)),
        seq_k=draw(SIZES),
        kv_heads=kv_heads,
        mask=mask,
        mask_requires_grad=mask and draw(st.booleans()),
        dropout_p=draw(st.sampled_from([0.0, 0.1])),
        needs_backward=draw(st.booleans()),
        kv_strides=strides,
    )


def names(call: Call) -> dict[str, object]:
    """What the names in a limit's formula stand for."""
    strides = (call.query_strides, call.key_strides, call.value_strides)
    return {
        "batch": call.batch,
        "heads": call.heads,
        "kv_heads": call.kv_heads,
        "seq_q": call.seq_q,
        "seq_k": call.seq_k,
        "entry": call.heads * call.seq_q * call.seq_k,
        "padded_head_dim": padded_head_dim(call.head_dim),
        "round_up": round_up,
        "last_tile": lambda length: (length - 1) // 64 * 64,
        "max": max,
        "backward": call.needs_backward,
        "dropout": call.dropout_p > 0,
        "nested": False,
        "mask": call.mask_row_stride is not None,
        "mask_requires_grad": call.mask_requires_grad,
        "mask_row_stride": call.mask_row_stride or 0,
        "expanded_kv": call.expanded_kv,
        "query_head_stride": call.query_strides.head,
        "key_head_stride": call.key_strides.head,
        "value_head_stride": call.value_strides.head,
        "key_row_stride": call.key_strides.row,
        "value_row_stride": call.value_strides.row,
        "head_strides": [stride.head for stride in strides],
        "row_strides": [stride.row for stride in strides],
    }


@settings(deadline=None)
@given(calls())
def test_a_limit_counts_what_its_formula_says(call):
    for limit in LIMITS:
        said = eval(limit.formula, {"__builtins__": {}}, names(call))
        assert limit.counted(call) == said, limit


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
