"""Random calls near the bounds: the guard's decisions held against the model of the kernels."""

from __future__ import annotations

import collections
import random

import pytest
from helpers.against_the_model import judged

CALLS = 1000


@pytest.mark.parametrize("seed", range(4))
def test_no_unsafe_call_passes_and_no_chunk_is_unsafe(seed):
    found = collections.defaultdict(list)
    for one in judged(random.Random(seed), CALLS):
        found[one.outcome].append(f"{one.words}: {one.detail}")
    for wrong in ("missed", "unsafe chunk", "far"):
        assert not found[wrong]
    assert len(found["needless"]) < 0.02 * CALLS
    # The draw is no good if it meets few bounds.
    assert len(found["agrees, split"]) > 0.1 * CALLS
