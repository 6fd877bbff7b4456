"""``probe``'s outcome: measurements beside predictions."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.inside_probe import FAILS, FITS, UNGUARDED, Row, Skipped
from helpers.standin_child import StandinChild, work


@pytest.fixture
def child(tmp_path) -> StandinChild:
    return StandinChild(tmp_path)


@pytest.mark.parametrize(
    ("predicted", "measured", "agrees"),
    [
        (FITS, "passes", True),
        (FAILS, "passes", False),
        (FAILS, "wrong gradients", True),
        (FITS, "wrong gradients", False),
        (FAILS, "CUDA error: an illegal memory access", True),
        (FITS, "killed by signal 11", False),
        (FITS, "timed out", False),
        (FAILS, "timed out", None),
        (FAILS, "out of memory", None),
        (FITS, "no kernel takes it", None),
        (FAILS, "killed by signal 9", None),
        (FAILS, "no result: status 1: ImportError", False),
    ],
)
def test_what_agrees_with_the_registry(predicted, measured, agrees):
    assert Row("F1", "1x1x1x8", UNGUARDED, predicted, measured).agrees is agrees


def test_the_outcome_is_a_table_and_json(child):
    what = work(1, 2, 5, 8)._replace(skipped=(Skipped("F1v", "", "no plain call reaches it"),))
    outcome = child.run(what)
    text = str(outcome)
    assert max(map(len, text.splitlines())) <= 100
    lines = text.splitlines()
    assert sum(line.startswith("DIFFERS") for line in lines) == len(outcome.disagreements) == 3
    assert sum(line.startswith("?") for line in lines) == 2
    assert any(line.startswith("skipped") and "F1v" in line for line in lines)
    assert "6 measured, 3 not as the registry predicts; 2 inconclusive, 1 skipped" in text
    found = json.loads(json.dumps(outcome.as_dict()))
    assert (found["measured"], found["disagreements"]) == (6, 3)
    assert found["gpu"] == "Paper GPU"
    assert found["torch"] == torch.__version__
    assert [row["agrees"] for row in found["rows"]] == [
        *(False, True, True, True),
        *(False, False, None, None),
    ]
    assert found["skipped"] == [{"limit": "F1v", "shape": "", "reason": "no plain call reaches it"}]


def test_nothing_to_measure_is_an_outcome_too(child):
    outcome = child.run(work())
    assert "0 measured" in str(outcome)
    assert outcome.disagreements == ()
    assert not outcome.is_good


def test_good_is_what_agrees(child):
    assert child.run(work(2, 8)).is_good
    assert not child.run(work(2, 1)).is_good
    assert not child.run(work(8)).is_good
