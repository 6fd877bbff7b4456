"""``probe`` as a user calls it, without a GPU; where one is needed, with children that stand in."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.child import HANGS, ended, environment
from helpers.commands import SCRIPT, Ended, command, fits_the_page
from helpers.inside import (
    probe_command,
)
from helpers.standin_child import StandinChild, ends

from sdpa_guard import LIMITS

SAVED = '{"format": "sdpa_guard probe 1", "rows": []}'


@pytest.fixture
def child(tmp_path) -> StandinChild:
    return StandinChild(tmp_path)


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--quick", "--limit", "F1")])
def test_without_a_gpu_it_says_so_in_one_line(arguments, child):
    child.has_no_gpu()
    result = call(child, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    said = "sdpa-guard probe: there is no CUDA GPU in reach, and probe measures on one\n"
    assert result.stderr == said


def test_the_variable_of_the_guard_changes_nothing():
    """Also with the children that measure on a GPU."""
    result = command("probe", env={"CUDA_VISIBLE_DEVICES": "", "SDPA_GUARD": "raise"})
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("sdpa-guard probe: there is no CUDA GPU")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "F9"], "argument --limit: invalid choice: 'F9' (choose from "),
        (["--limit", "f1"], "argument --limit: invalid choice: 'f1' (choose from "),
        (["--limit"], "argument --limit: expected one argument"),
        *(
            ([option, value], f"argument {option}: must be a number greater than 0, not {value!r}")
            for option, values in {
                "--max-memory": ("-1", "0", "nan", "inf", "1e999"),
                "--timeout": ("-0.0", "nan", "1e999"),
            }.items()
            for value in values
        ),
        *(
            ([option, value], f"argument {option}: must be a number, not {value!r}")
            for option in ("--max-memory", "--timeout")
            for value in ("many", "", "1 GiB", "1m", "1_0", "\u0661")
        ),
        (
            ["--max-memory=-inf"],
            "argument --max-memory: must be a number greater than 0, not '-inf'",
        ),
        (["--save", "missing/saved.json"], "argument --save: cannot write 'missing/saved.json': "),
        (["--save", "folder"], "argument --save: cannot read 'folder': "),
        (["--save", ""], "argument --save: cannot read '.': "),
        (["--save", "/dev/zero"], "argument --save: cannot read '/dev/zero': it is no regular"),
        (["--save", "x" * 5000], "argument --save: cannot read 'xxx"),
        (["--save", "empty"], "argument --save: 'empty' is damaged, or no file of probe's: "),
        (["--save", "binary"], "argument --save: 'binary' is damaged, or no file of probe's: "),
        (["--save", "foreign.json"], "argument --save: 'foreign.json' is no file of probe's: "),
        (["--save", "damaged.json"], "argument --save: 'damaged.json' is damaged: not all of its"),
        (["F1"], "unrecognized arguments: F1"),
    ],
)
def test_a_wrong_argument_is_one_line_and_status_2(arguments, message, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "foreign.json").write_text('{"rows": []}')
    (tmp_path / "damaged.json").write_text(SAVED.replace("[]", "[1]"))
    before = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    result = command("probe", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    program = "sdpa-guard" if message.startswith("unrecognized") else "sdpa-guard probe"
    assert line.startswith(f"{program}: error: {message}")
    assert {file.name: file.stat().st_size for file in tmp_path.iterdir()} == before


def test_an_unknown_limit_is_told_the_known_ones():
    line = command("probe", "--limit", "F9").stderr
    assert all(repr(limit.id) in line for limit in LIMITS)


@pytest.mark.parametrize("held", [None, SAVED])
def test_a_save_file_is_left_as_it_is_where_nothing_is_measured(held, child, tmp_path):
    child.has_no_gpu()
    save = tmp_path / "results" / "saved.json"
    save.parent.mkdir()
    if held is not None:
        save.write_text(held)
    assert call(child, "--save", str(save)).returncode == 1
    assert [file.read_text() for file in save.parent.iterdir()] == ([] if held is None else [held])


# --- With children that stand in for those on a GPU ----------------------------------------------


def call(child: StandinChild, *arguments: str) -> Ended:
    """The command in this process, with another program for its children."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("find_gpu", "probe"):
            asked = functools.partial(getattr(probe_command, name), command=child.command)
            patch.setattr(probe_command, name, asked)
        return command("probe", *arguments)


def start(child: StandinChild, *arguments: str) -> subprocess.Popen[str]:
    """The same in a process of its own."""
    code = f"""
import functools, sys
from helpers.inside import (
    main,
    probe_command as probe,
)
for name in ("find_gpu", "probe"):
    setattr(probe, name, functools.partial(getattr(probe, name), command={child.command!r}))
sys.exit(main(["probe", *sys.argv[1:]]))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )


def test_measurements_are_a_table_on_stdout_and_lines_on_stderr(child):
    child.answer("CUDA error: invalid configuration argument", past=65535)
    result = call(child, "--limit", "F2b", "--quick")
    assert result.returncode == 0, result.stderr
    assert fits_the_page(result.stdout)
    rows = [line.split()[0] for line in result.stdout.splitlines() if " F2b " in line]
    assert rows == ["ok", "ok", "ok"]
    assert "3 measured, 0 not as the registry predicts" in result.stdout
    shape = "x1x8x64 bfloat16"
    assert result.stderr.splitlines() == [
        f"1/3  F2b 65535{shape} unguarded: passes",
        f"2/3  F2b 65536{shape} unguarded: CUDA error: invalid configuration argument",
        f"3/3  F2b 65536{shape} guarded: passes",
    ]


def test_what_differs_is_marked_and_status_1(child):
    child.answer("passes", past=65535)
    result = call(child, "--limit", "F2b", "--quick", "--json")
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert set(found) == {"gpu", "torch", "rows", "skipped", "measured", "disagreements"}
    assert (found["gpu"], found["measured"], found["disagreements"]) == ("Paper GPU", 3, 1)
    assert [row["agrees"] for row in found["rows"]] == [True, False, True]
    assert set(found["rows"][0]) == {"limit", "shape", "how", "predicted", "measured", "agrees"}


def test_nothing_measured_is_status_1_and_a_reason(child):
    result = call(child, "--limit", "F2b", "--max-memory", "0.5", "--json")
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert (found["measured"], found["rows"]) == (0, [])
    assert all("0.5 may be used" in skip["reason"] for skip in found["skipped"])
    assert len(child.starts()) == 1  # which asked for the GPU


def test_no_more_is_planned_than_the_gpu_has_free(child):
    result = call(child, "--limit", "F4a", "--max-memory", "1000", "--json")
    (skip,) = json.loads(result.stdout)["skipped"]
    assert skip["reason"].endswith(" GiB of GPU memory, 8.0 may be used")


def test_a_second_call_measures_nothing_again(child, tmp_path):
    arguments = ("--limit", "F2b", "--quick", "--save", str(tmp_path / "saved.json"))
    child.answer("wrong output", past=65535)
    first = call(child, *arguments)
    assert len(child.starts()) == 1 + 3
    again = call(child, *arguments)
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")
    assert len(child.starts()) == 1 + 3 + 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_ends_the_child_without_a_traceback(child, number, status):
    child.answer("hang", past=0)
    process = start(child, "--limit", "F2b")
    while not child.hangs():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    assert process.communicate(timeout=HANGS) == ("", "")
    assert process.returncode == status
    assert len(child.processes()) == 3  # which asked for the GPU, which hangs, what that started
    assert all(map(ends, child.processes()))


def test_a_time_limit_ends_a_child(child):
    child.answer("hang", past=65535)
    result = call(child, "--limit", "F2b", "--quick", "--timeout", "3")
    assert result.stderr.splitlines()[1].endswith(" unguarded: timed out")


def test_a_closed_pipe_is_silent(child):
    child.answer("wrong output", past=65535)
    process = start(child, "--limit", "F2b", "--quick")
    process.stdout.close()
    said = process.stderr.read().splitlines()
    assert process.wait(HANGS) == 128 + signal.SIGPIPE
    assert [line.split()[0] for line in said] == ["1/3", "2/3", "3/3"]


def test_the_script_and_the_module_are_the_same_command():
    module = ended(sys.executable, "-m", "sdpa_guard", "probe", "--help")
    installed = ended(SCRIPT, "probe", "--help")
    assert module.returncode == installed.returncode == 0
    assert module.stdout == installed.stdout
