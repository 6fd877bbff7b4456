"""Training over several ranks: what each door sees there, and that the results stay the same.

helpers/ranks.py runs under torchrun; two ranks talk over Gloo on the CPU.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch
from helpers.child import TESTS, ended
from helpers.inside import (
    RUNNING_TORCH,
    Release,
)

RANKS = 2

pytestmark = [
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this torch has no torch.distributed"
    ),
    pytest.mark.slow,
]


def torchrun(*program: object, **variables: str) -> str:
    """What the ranks print; each of them has to succeed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", RANKS, *program]
    result = ended(*command, env={"CUDA_VISIBLE_DEVICES": "", **variables})
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each rank found, of every route and under both doors."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun("-m", "helpers.ranks", folder)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


both_doors = pytest.mark.parametrize("door", ["scoped", "process-wide"])


@both_doors
@pytest.mark.parametrize(
    ("route", "chunks"),
    # Five batch entries, or the four of eight heads that a rank holds, two a call.
    [("data parallel", 3), ("fully sharded", 3), ("tensor parallel", 2)],
)
def test_every_rank_splits_with_the_unguarded_results(ranks, route, door, chunks):
    for results in ranks:
        result = results[route]
        if "skip" in result:
            pytest.skip(result["skip"])
        calls = 6  # of two layers in three steps
        assert result[f"{door}, calls"] == (calls, calls, chunks * calls)
        torch.testing.assert_close(result[door], result["unguarded"])


def test_tensor_parallel_calls_hold_the_heads_of_one_rank(ranks):
    for results in ranks:
        assert set(results["tensor parallel"]["queries"]) == {(5, 4, 6, 8)}


@both_doors
@pytest.mark.parametrize("mode", ["training", "no_grad"])
def test_dtensors_pass_through(ranks, mode, door):
    for results in ranks:
        result = results[f"DTensor, {mode}"]
        assert result["unguarded"]["dim 0"]["tensors"], "torch can do this one"
        assert_unchanged(result[door], result["unguarded"])
        assert result[f"{door}, calls"] == (0, 0, 0)


@both_doors
def test_dtensors_in_inference_mode(ranks, door):
    """There newer torch calls attention on the local tensors: calls for the guard."""
    for results in ranks:
        result = results["DTensor, inference_mode"]
        assert_unchanged(result[door], result["unguarded"])
        local = result["queries"]
        if Release(2, 13) <= RUNNING_TORCH:
            assert local == [(3, 4, 6, 8), (6, 4, 6, 8)]
        calls, split, _ = result[f"{door}, calls"]
        assert (calls, split) == (len(local), len(local))


def assert_unchanged(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same results in the same places, or the same refusal where torch cannot shard a call."""
    for name, outcome in expected.items():
        assert actual[name]["said"] == outcome["said"]
        torch.testing.assert_close(actual[name]["tensors"], outcome["tensors"])


LOSSES = re.compile(r"^rank (\d): losses (.*)$", re.MULTILINE)
SPLIT = re.compile(r"^rank (\d): the guard is on, (\d+) of (\d+) attention calls", re.MULTILINE)


@pytest.mark.skipif(
    Release(2, 5) > RUNNING_TORCH, reason="torch before 2.5 imports no extensions by itself"
)
def test_the_example_splits_in_every_rank_with_the_unguarded_losses():
    example = TESTS.parent / "examples" / "train_ddp.py"
    unguarded, guarded = torchrun(example), torchrun(example, SDPA_GUARD="1")
    assert unguarded.count("the guard is off") == RANKS
    assert sorted(SPLIT.findall(guarded)) == [("0", "24", "24"), ("1", "24", "24")]
    expected, actual = losses(unguarded), losses(guarded)
    assert list(expected) == ["0", "1"]
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-4)  # printed to four places


def losses(printed: str) -> dict[str, torch.Tensor]:
    found = sorted(LOSSES.findall(printed))
    return {rank: torch.tensor([float(loss) for loss in line.split()]) for rank, line in found}
