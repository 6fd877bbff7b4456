"""``probe`` on a GPU: right kernels pass its comparison, and bounds are where they should be."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from helpers.child import ended
from helpers.commands import SCRIPT
from helpers.inside import (
    RUNNING_TORCH,
    takes,
)
from helpers.inside_probe import FITS, GUARDED, find_gpu, measure, needed_gib, probe, shapes
from helpers.lowered import BY_ID
from helpers.trials import KINDS, LONG, SMALL, with_a_row_of_another
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import LIMITS

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

GIB = 2**30


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("limit_id", ["F2b", "E4"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_step_passes(kind, limit_id, guarded):
    tried = dataclasses.replace(SMALL, limit=limit_id, **KINDS[kind])
    limit = dataclasses.replace(tried.entry, bound=1)
    if not takes(limit.backend, tried.call, RUNNING_TORCH):
        pytest.skip(f"{limit.backend} does not take such calls")
    assert measure(tried, guarded, limits=[limit]) == "passes"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("limit_id", ["F2b", "E4"])
def test_one_wrong_row_of_a_long_sequence_is_found(limit_id, dtype):
    tried = dataclasses.replace(LONG, limit=limit_id, dtype=dtype)

    def attend(*arguments):
        return with_a_row_of_another(scaled_dot_product_attention(*arguments))

    assert measure(tried, False) == "passes"
    assert measure(tried, False, attend=attend) == "wrong output"


@pytest.mark.parametrize("limit_id", [limit.id for limit in LIMITS])
def test_the_estimate_of_memory_is_enough(limit_id):
    """For the steps that pass: at the bound, and over it with the guard."""
    free = torch.cuda.mem_get_info()[0] / GIB
    # No larger: a card of 24 GiB must do, and the test must not take long.
    found = shapes([BY_ID[limit_id]], RUNNING_TORCH, min(free, 20.0), quick=True)
    if not found.planned:
        pytest.skip(found.skipped[0].reason)
    for trial, how, predicted in found.planned:
        if predicted == FITS:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            assert measure(trial, how == GUARDED) in ("passes", "no kernel takes it")
            assert torch.cuda.max_memory_allocated() / GIB < needed_gib(trial)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("limit_id", ["F1", "F2b", "E4", "E8", "E11"])
def test_a_gpu_is_as_the_registry_says(limit_id):
    gpu = find_gpu()
    found = shapes([BY_ID[limit_id]], RUNNING_TORCH, gpu.free_gib, quick=True, dtype=gpu.dtype)
    if not found.planned:
        pytest.skip(found.skipped[0].reason)
    outcome = probe(found, gpu.name)
    assert outcome.disagreements == (), str(outcome)
    assert {row.agrees for row in outcome.rows} == {True}


def test_the_command_measures_and_resumes(tmp_path):
    save = tmp_path / "saved.json"
    command = [SCRIPT, "probe", "--limit", "F2b", "--quick", "--json", "--save", save]
    first = ended(*command)
    assert first.returncode == 0, first.stderr
    rows = json.loads(first.stdout)["rows"]
    assert [row["agrees"] for row in rows] == [True, True, True]
    assert len(first.stderr.splitlines()) == 3
    again = ended(*command)
    assert (again.stdout, again.stderr) == (first.stdout, "")
