"""The console script, given streams and numbers that are of no use."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.child import ended
from helpers.commands import SCRIPT
from helpers.inside import (
    main,
)

FITS = "8x4x1024x64"
# Buffered streams report a fault late.
BUFFERED = {"PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": ""}
needs_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def shell(arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(f"{SCRIPT} {arguments}", shell=True, env=BUFFERED)


# --- Streams ------------------------------------------------------------------------------------


@needs_full_disk
@pytest.mark.parametrize("command", [f"check {FITS}", "limits", "doctor", "autoload --help", "-h"])
def test_a_full_disk_is_one_line_and_status_1(command, fork):
    result = fork(*command.split(), stdout="/dev/full")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("sdpa-guard")
    assert line.endswith("error: [Errno 28] No space left on device")


@needs_full_disk
@pytest.mark.parametrize(("command", "status"), [("check 4x4", 2), ("", 2), ("probe", 1)])
def test_a_full_disk_for_messages_leaves_the_status(command, status, fork):
    result = fork(*command.split(), stderr="/dev/full", env=BUFFERED)
    assert (result.returncode, result.stdout) == (status, "")


@pytest.mark.parametrize(
    ("command", "status"),
    [(f"check {FITS}", 0), ("limits", 0), ("doctor", 0), ("run /dev/null", 0), ("check 4x4", 2)],
)
def test_closed_streams_are_silent(command, status):
    result = shell(f"{command} <&- >&- 2>&-")
    assert (result.returncode, result.stdout, result.stderr) == (status, "", "")


def test_what_is_said_on_a_closed_stderr_is_not_said_on_stdout():
    result = shell("probe 2>&-")
    assert (result.returncode, result.stdout) == (1, "")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "there is no shape on standard input"),
        ("/dev/null", "there is no shape on standard input"),
        (sys.executable, ""),  # a binary file
    ],
    ids=["closed", "empty", "binary"],
)
def test_a_useless_standard_input_is_one_line_and_status_2(given, message, fork):
    result = shell("check - <&-") if given is None else fork("check", "-", stdin=given)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"sdpa-guard check: error: argument SHAPE: {message}")


# --- Numbers ------------------------------------------------------------------------------------

NO_NUMBERS = [
    "",
    " ",
    "x",
    "-",
    "1.5",
    "1e3",
    "1_0",
    "0x10",
    " 7",
    "7\n",
    "\u0667",
    "\u00b2",
    "7 7",
]
TOO_SMALL_OR_LARGE = ["0", "-0", "-1", f"{2**40 + 1}", f"{10**400}", "9" * 5000, "-" + "9" * 5000]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that is said; the status is 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    (line,) = err.splitlines()
    assert len(line) < 450
    return line


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("number", [*NO_NUMBERS, *TOO_SMALL_OR_LARGE])
def test_no_part_of_a_shape_takes_it(number, place, capsys):
    sizes = ["4"] * 4
    sizes[place] = number
    shape = "x".join(sizes)
    if shape.startswith("-"):
        shape = f" {shape}"  # argparse would take it for an option
    assert "argument SHAPE: " in refused(capsys, "check", shape)


@pytest.mark.parametrize("option", ["--seq-k", "--kv-heads"])
@pytest.mark.parametrize("number", [*NO_NUMBERS, *TOO_SMALL_OR_LARGE])
def test_no_option_takes_it(option, number, capsys):
    line = refused(capsys, "check", FITS, f"{option}={number}")
    assert line.startswith(f"sdpa-guard check: error: argument {option}: ")


def test_zeros_before_a_number_do_not_count(capsys):
    assert main(["check", f"{'0' * 5000}8x4x1024x64", "--seq-k", f"{'0' * 5000}16"]) == 0
    assert capsys.readouterr().out.startswith("8x4x1024x64")


@pytest.mark.parametrize(
    ("command", "number"),
    [
        *itertools.product(
            [("check", FITS, "--dropout"), ("probe", "--timeout"), ("probe", "--max-memory")],
            ["", "x", "1,5", "1_0", "\u0661", " 1", "0x1", "nan", "-inf", "1e999", "-0.5"],
        ),
        (("check", FITS, "--dropout"), "1.0000001"),
    ],
)
def test_no_fraction_takes_it(command, number, capsys):
    *command, option = command
    line = refused(capsys, *command, f"{option}={number}")
    assert line.startswith(f"sdpa-guard {command[0]}: error: argument {option}: ")


@pytest.mark.parametrize("command", [("check", FITS), ("limits",)])
@pytest.mark.parametrize(
    "release", ["", "x", "2", "1.13", "-1", "\u0662.9", "2." + "9" * 5000, "2.9,"]
)
def test_no_release_is_read_from_it(command, release, capsys):
    line = refused(capsys, *command, f"--torch={release}")
    assert line.startswith(f"sdpa-guard {command[0]}: error: argument --torch: torch_version must")


# --- Commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a command: check, limits, doctor, run, probe, autoload"),
        (["split"], "argument COMMAND: invalid choice: 'split' (choose from "),
        (["--nowhere"], "unrecognized arguments: --nowhere"),
        (["limits", "x\ny" * 1000], "unrecognized arguments: x y"),
        (["autoload", "--torch"], "unrecognized arguments: --torch"),
    ],
)
def test_what_is_no_command_is_refused(arguments, message, capsys):
    assert refused(capsys, *arguments).startswith(f"sdpa-guard: error: {message}")
