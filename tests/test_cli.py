"""The console script: ``check``, ``limits``, ``doctor``."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from typing import Any

import pytest
from helpers.child import HANGS, ended, environment
from helpers.commands import SCRIPT, command, fits_the_page
from helpers.inside import (
    RELEASES,
    RUNNING_TORCH,
    doctor,
    main,
)
from helpers.lowered import BY_ID
from helpers.measured import CASES, SEED_TABLE

import sdpa_guard
from sdpa_guard import LIMITS

FAILING = "400x4x10496x128"


# --- check --------------------------------------------------------------------------------------

FINDING = {
    "limit": str,
    "name": str,
    "backend": str,
    "pass": str,
    "counted": int,
    "bound": int,
    "ratio": float,
    "over": bool,
    "effect": str,
}
VERDICT = {
    "ok": bool,
    "shape": str,
    "torch": str,
    "taken_by": [str],
    "findings": [FINDING],
    "plan": (dict, type(None)),
    "largest_batch": (int, type(None)),
}


def assert_schema(data: Any, schema: Any) -> None:
    if isinstance(schema, dict):
        assert set(data) == set(schema)
        for name, part in schema.items():
            assert_schema(data[name], part)
    elif isinstance(schema, list):
        for item in data:
            assert_schema(item, schema[0])
    else:
        assert isinstance(data, schema)


def test_check_says_what_is_over_and_how_it_would_be_split():
    result = command("check", FAILING, "--torch", "2.9.0", "--backend", "flash")
    assert (result.returncode, result.stderr) == (1, "")
    assert fits_the_page(result.stdout)
    for part in ("2 calls of 200 batch entries", "F1 (flash", "2149580800", "100.10%"):
        assert part in result.stdout
    assert "largest batch that fits in one call: 399" in result.stdout


def test_check_of_a_shape_that_fits():
    result = command("check", "8x4x1024x64")
    assert result.returncode == 0
    assert f"8x4x1024x64 bfloat16 on torch {RUNNING_TORCH} fits in one call" in result.stdout


def test_check_over_all_releases_shows_where_it_fails_and_where_it_is_fixed():
    result = command("check", FAILING, "--torch", "all", "--backend", "flash")
    assert result.returncode == 1
    assert fits_the_page(result.stdout)
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("F1 ")]
    assert row.split()[-12:] == ["OVER"] * 8 + ["-"] * 4
    fixed = command("check", FAILING, "--torch", "all", "--backend", "flash", "--inference")
    assert (fixed.returncode, fixed.stdout) == (
        0,
        f"{FAILING} bfloat16 fits in one call on every supported torch\n\n",
    )


def test_check_over_all_releases_as_json():
    result = command("check", FAILING, "--torch", "all", "--json")
    answer = json.loads(result.stdout)
    assert set(answer) == {"ok", "shape", "releases"}
    assert list(answer["releases"]) == [str(release) for release in RELEASES]


def test_check_answers_each_line_of_standard_input_in_json():
    """The measured shapes."""
    shapes = [
        "x".join(row[k] for k in ("batch", "heads", "seq_q", "head_dim")) for row in SEED_TABLE
    ]
    facts = ("--json", "--torch", "2.9.0", "--backend", "flash")
    result = command("check", "-", *facts, input="\n\n".join(shapes))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert_schema(answers, [VERDICT])
    assert [answer["ok"] for answer in answers] == [row["backward"] == "ok" for row in SEED_TABLE]
    for answer, row in zip(answers, SEED_TABLE):
        counted = {f["limit"]: f["counted"] for f in answer["findings"]}
        assert counted["F1"] == int(row["counted"])
        # The largest batch is the last that fits.
        batch, largest = int(row["batch"]), answer["largest_batch"]
        assert (batch <= largest) == answer["ok"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_check_names_the_limit_of_a_reported_case(case):
    shape = "x".join(case[k] for k in ("batch", "heads", "seq_q", "head_dim"))
    facts = ["--json", "--torch", "any", "--backend", case["backend"], "--seq-k", case["seq_k"]]
    facts += ["--dtype", case["dtype"]]
    facts += ["--mask"] if case["mask"] != "no" else []
    facts += ["--inference"] if case["pass"] != "backward" else []
    result = command("check", shape, *facts)
    answer = json.loads(result.stdout)
    assert_schema(answer, VERDICT)
    over = [finding["limit"] for finding in answer["findings"] if finding["over"]]
    if case["expected_limit"] == "E8":
        assert over == []  # a matter of strides, which a shape does not have
    else:
        assert case["expected_limit"] in over
    assert result.returncode == bool(over)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["400x4"], "argument SHAPE: '400x4' must be four whole numbers"),
        (["axbxcxd"], "argument SHAPE: 'axbxcxd' must be four whole numbers"),
        (["-1x4x16x64"], "the following arguments are required: SHAPE"),
        (["0x4x16x64"], "argument SHAPE: batch must be 1 or more"),
        ([f"{2**41}x4x16x64"], f"argument SHAPE: batch must be 1 or more, {2**40} at most"),
        ([FAILING, "--seq-k", "0"], "argument --seq-k: seq_k must be 1 or more"),
        ([FAILING, "--seq-k", "many"], "argument --seq-k: must be a whole number, not 'many'"),
        ([FAILING, "--kv-heads", "3"], "argument --kv-heads: kv_heads must divide heads (4)"),
        ([FAILING, "--dropout", "1.5"], "argument --dropout: dropout_p must be between 0 and 1"),
        ([FAILING, "--dropout", "nan"], "argument --dropout: dropout_p must be between 0 and 1"),
        ([FAILING, "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        ([FAILING, "--backend", "math"], "argument --backend: invalid choice: 'math'"),
        ([FAILING, "--torch", "1.13"], "argument --torch: torch_version must be 2.3.0 or later"),
        ([FAILING, "--torch", "new"], "argument --torch: torch_version must be a release"),
        ([FAILING, "--causal", "--mask"], "argument --mask: mask must be False with is_causal"),
        (["-"], "argument SHAPE: there is no shape on standard input"),
        ([], "the following arguments are required: SHAPE"),
    ],
)
def test_a_wrong_argument_of_check_is_one_line_and_status_2(
    arguments, message, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"sdpa-guard check: error: {message}")


@pytest.mark.parametrize(
    ("arguments", "status", "taken_by"),
    [
        (["70000x4x16x512", "--backend", "flash", "--torch", "2.9"], 1, []),
        (["70000x4x16x64", "--backend", "flash", "--torch", "2.9"], 1, ["flash"]),
        (["7x4x16x64", "--backend", "flash", "--backend", "flash", "--torch", "2.9"], 0, ["flash"]),
        (["7x4x16x512", "--dtype", "float32"], 0, ["efficient"]),
    ],
)
def test_a_backend_that_would_not_take_the_call_is_no_pass(arguments, status, taken_by):
    result = command("check", "--json", *arguments)
    assert result.returncode == status
    assert json.loads(result.stdout)["taken_by"] == taken_by


def test_a_backend_that_never_takes_the_call_is_no_pass():
    result = command("check", "70000x4x16x512", "--backend", "flash", "--torch", "all")
    assert result.returncode == 1
    assert "these backends would not take" in result.stdout


def test_a_release_to_come_has_what_has_no_known_fix_and_says_so():
    said = " ".join(command("check", FAILING, "--torch", "9.9").stdout.split())
    assert "on torch 9.9.0 (not read yet: every limit without a known fix counts)" in said


# --- limits -------------------------------------------------------------------------------------


def test_limits_lists_the_registry():
    result = command("limits")
    assert result.returncode == 0
    assert fits_the_page(result.stdout.split("\n\n")[0])
    for limit in LIMITS:
        assert f"\n{limit.id:<4} " in result.stdout
        assert limit.source in result.stdout


def test_limits_of_one_release_as_json():
    result = command("limits", "--torch", "2.12.0", "--json")
    listed = json.loads(result.stdout)
    schema = dict.fromkeys(
        ("id", "name", "backend", "pass", "counts", "torch", "effect", "source"), str
    )
    for limit in listed:
        assert limit.pop("capability") in (None, [9, 0], [10, 0])
    assert_schema(listed, [{**schema, "bound": int, "cures": list, "evidence": list}])
    assert "F1" not in [limit["id"] for limit in listed]


def test_a_wrong_release_of_limits():
    result = command("limits", "--torch", "x")
    assert result.returncode == 2
    assert result.stderr.startswith("sdpa-guard limits: error: argument --torch: torch_version")


# --- doctor -------------------------------------------------------------------------------------


def test_doctor_says_what_is_here_and_ends_with_a_verdict():
    result = command("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    assert fits_the_page(result.stdout)
    for part in (f"torch             {RUNNING_TORCH}", "backends enabled", "zero-code start"):
        assert part in result.stdout
    has_the_bound = any(BY_ID[known].affects(RUNNING_TORCH) for known in ("F1", "F1p"))
    assert ("guard it" in result.stdout) == has_the_bound


def test_doctor_as_json():
    found = json.loads(command("doctor", "--json").stdout)
    assert found["torch"].startswith(str(RUNNING_TORCH))
    assert found["limits"] == [
        limit.id for limit in LIMITS if limit.affects(RUNNING_TORCH) and limit.capability is None
    ]
    assert set(found["backends"]) == {"built", "enabled", "order", "flash implementation"}


def test_doctor_reads_the_variable():
    guarded = command("doctor", env={"SDPA_GUARD": "warn", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert guarded.returncode == 1  # nothing would read it
    assert "'warn': policy warn" in guarded.stdout
    assert "missing: `sdpa-guard autoload`" in guarded.stdout
    wrong = command("doctor", env={"SDPA_GUARD": "yes"})
    assert wrong.returncode == 1
    assert "SDPA_GUARD must be one of" in wrong.stdout


@pytest.mark.parametrize("before", range(90, 100))
def test_no_line_of_doctor_ends_within_a_name(before):
    findings = doctor.examine()
    guard = {**findings["guard"], "start": "x " * (before // 2 - 9) + "`sdpa-guard autoload`"}
    verdict = "x" * before + " `sdpa-guard limits`"
    text = doctor.as_text({**findings, "guard": guard, "verdict": verdict})
    assert fits_the_page(text)
    assert text.count("sdpa-guard") == 2


# --- All of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["check", "limits", "doctor", "run", "probe", "autoload"])
def test_help_has_an_example(name):
    result = command(name, "--help")
    assert result.returncode == 0
    assert f"example: sdpa-guard {name} " in result.stdout


def test_it_has_a_version():
    assert ended(SCRIPT, "--version").stdout == f"sdpa-guard {sdpa_guard.__version__}\n"


def test_a_closed_pipe_is_silent():
    shapes = "\n".join(["1x1x1x8"] * 200)
    result = ended(f"{SCRIPT} check - | head -n 1", shell=True, input=shapes)
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1


def test_ctrl_c_ends_with_130_and_without_a_traceback():
    process = subprocess.Popen(
        [SCRIPT, "check", "1x1x1x8", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    process.stdout.readline()  # now it waits for standard input
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS) == 130
    assert process.stderr.read() == ""
