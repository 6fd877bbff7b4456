"""``probe``'s runner: how it takes what its children do, and what it says meanwhile."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.child import HANGS, environment
from helpers.inside_probe import FAILS, FITS, GUARDED, UNGUARDED, NoGPUError, Shapes, find_gpu
from helpers.standin_child import StandinChild, ends, work


@pytest.fixture
def child(tmp_path) -> StandinChild:
    return StandinChild(tmp_path)


@pytest.mark.parametrize(
    ("batch", "measured"),
    [
        (1, "passes"),
        (2, "wrong gradients"),
        (4, "killed by signal 11"),
        (5, "no result: status 1: ImportError: no torch"),
        (6, "killed by signal 6"),
        (7, "CUDA error: an illegal memory access"),
        (8, "out of memory"),
        (9, "killed by signal 9"),
        (10, "no result: status 0: "),
    ],
)
def test_how_a_child_ends_is_told(child, batch, measured):
    assert child.run(work(batch)).rows[0].measured == measured


def test_each_shape_is_tried_unguarded_and_guarded_in_processes_of_their_own(child, monkeypatch):
    monkeypatch.setenv("SDPA_GUARD", "raise")
    outcome = child.run(work(1, 2))
    assert [(row.how, row.predicted, row.measured) for row in outcome.rows] == [
        (UNGUARDED, FAILS, "passes"),
        (GUARDED, FITS, "passes"),
        (UNGUARDED, FAILS, "wrong gradients"),
        (GUARDED, FITS, "passes"),
    ]
    assert [row.agrees for row in outcome.rows] == [False, True, True, True]
    processes, variables = zip(*map(str.split, child.starts()))
    assert len(set(processes)) == 4
    assert set(variables) == {"None"}


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
def test_a_child_that_hangs_is_ended_with_all_that_it_started(child):
    (unguarded, _) = work(3).planned
    for timeout in (2, 30, HANGS):  # a busy machine may take long to start it
        outcome = child.run(Shapes((unguarded,), ()), timeout=timeout)
        assert [row.measured for row in outcome.rows] == ["timed out"]
        if child.hangs():
            break
    *_, own, started = child.processes()
    assert ends(own)
    assert ends(started)


@needs_proc
def test_what_a_child_leaves_behind_is_ended_too(child):
    """It would hold memory of the GPU, and the next shape would not fit."""
    (unguarded, _) = work(11).planned
    outcome = child.run(Shapes((unguarded,), ()))
    assert [row.measured for row in outcome.rows] == ["passes"]
    assert ends(child.processes()[-1])


@needs_proc
def test_an_interrupt_ends_the_child_and_leaves_the_save_file_whole(child, tmp_path):
    code = """
import sys
from pathlib import Path
from helpers.standin_child import StandinChild, work
StandinChild(Path(sys.argv[1])).run(work(1, 3), save=Path(sys.argv[2]), progress=sys.stderr)
"""
    save = tmp_path / "saved.json"
    arguments = [sys.executable, "-c", code, str(tmp_path), str(save)]
    parent = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment(), text=True)
    while not child.hangs():
        assert parent.poll() is None, parent.communicate()[1]
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    said = parent.communicate(timeout=HANGS)[1]
    assert parent.returncode == -signal.SIGINT
    assert said.splitlines()[0] == "1/4  E4 1x4x8x16 bfloat16 seq_k=16 unguarded: passes"
    *_, hanging, started = child.processes()
    assert ends(hanging)
    assert ends(started)
    assert len(json.loads(save.read_text())["rows"]) == 2
    assert len(child.starts()) == 3
    assert len(child.run(work(1), save=save).rows) == 2
    assert len(child.starts()) == 3


def test_a_pipe_gets_a_line_for_each_measurement(child):
    said = io.StringIO()
    child.run(work(1, 4), progress=said)
    title = "x4x8x16 bfloat16 seq_k=16"
    assert said.getvalue().splitlines() == [
        f"1/4  E4 1{title} unguarded: passes",
        f"2/4  E4 1{title} guarded: passes",
        f"3/4  E4 4{title} unguarded: killed by signal 11",
        f"4/4  E4 4{title} guarded: killed by signal 11",
    ]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_terminal_gets_one_line_that_is_rewritten(child):
    reader, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream:
        child.run(work(1), progress=stream)
    said = ""
    # Linux ends a terminal that nobody writes to with an error.
    with os.fdopen(reader, "rb", 0) as screen, contextlib.suppress(OSError):
        while part := screen.read(4096):
            said += part.decode()
    first, second, last = said.split("\r\x1b[2K")[1:]
    assert first.startswith("[....................] 1/2  E4 1x4x8x16")
    assert second.startswith("[##########..........] 2/2  E4 1x4x8x16")
    assert last == ""
    assert "\n" not in said


# --- Which GPU ----------------------------------------------------------------------------------


def test_the_gpu_is_what_the_child_says(child):
    gpu = find_gpu(command=child.command)
    assert (gpu.name, gpu.free_gib, gpu.dtype) == ("Paper GPU", 8.0, "bfloat16")


def test_without_a_gpu_that_is_said(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoGPUError, match="there is no CUDA GPU in reach"):
        find_gpu()


def test_a_child_that_gives_no_answer_is_said():
    with pytest.raises(NoGPUError, match="cannot ask for the GPU: no result: status 1: boom"):
        find_gpu(command=[sys.executable, "-c", "raise SystemExit('boom')"])
