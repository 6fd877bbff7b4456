"""Each example runs alone and says what a person came for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.child import ended

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(sys.executable, EXAMPLES / name, *arguments)


@pytest.mark.demo
@pytest.mark.slow
def test_training_a_third_party_model_agrees_with_the_unguarded_run():
    result = run("train_third_party.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("accuracy on unseen digits") == 3
    assert "With the guard and gradient checkpointing" in result.stdout
    assert "attention calls became" in result.stdout
    assert "largest difference to the run without the guard" in result.stdout


def test_the_rehearsal_agrees_with_the_measurements():
    result = run("rehearse_on_meta.py")
    assert result.returncode == 0, result.stderr
    assert "400x4x10496x128" in result.stdout
    assert "2 calls of 200 entries" in result.stdout
    assert "All 15 are split exactly where the unguarded step failed." in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_gpu_example_says_in_one_line_that_it_needs_one():
    result = run("train_cuda.py")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.strip().splitlines() == [
        "This example needs a CUDA GPU; examples/rehearse_on_meta.py does without."
    ]
