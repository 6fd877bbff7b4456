"""``sdpa-guard autoload``, its ``.pth`` file, and the hook that waits for torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.child import POLICY, python
from helpers.inside import (
    RUNNING_TORCH,
    Release,
    autoload,
    doctor,
    main,
)

import sdpa_guard_autoload
from sdpa_guard_autoload import PTH_FILE, PTH_LINE

#: Newer torch as one before 2.5.
OLDER = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.fixture
def pth(tmp_path, monkeypatch) -> Path:
    """The file, in an environment of its own."""
    file = tmp_path / PTH_FILE
    monkeypatch.setattr(autoload, "pth_file", lambda: file)
    monkeypatch.setattr(doctor, "pth_file", lambda: file)
    return file


# --- The command --------------------------------------------------------------------------------


def test_on_an_older_torch_it_writes_one_line_and_removes_it(pth, monkeypatch, capsys):
    monkeypatch.setattr(autoload, "torch_looks_by_itself", lambda: False)
    assert main(["autoload"]) == 0
    assert pth.read_text() == f"{PTH_LINE}\n"
    assert capsys.readouterr().out.startswith(f"{pth} is in place: SDPA_GUARD=1 guards every")
    for _ in range(2):
        assert main(["autoload", "--remove"]) == 0
        assert not pth.exists()
        assert capsys.readouterr().out == f"{pth} is gone\n"


def test_on_a_newer_torch_it_says_that_it_is_not_needed(pth, monkeypatch, capsys):
    monkeypatch.setattr(autoload, "torch_looks_by_itself", lambda: True)
    said = f"not needed: torch {RUNNING_TORCH} looks for sdpa_guard by itself; "
    assert main(["autoload"]) == 0
    assert not pth.exists()
    assert capsys.readouterr().out.startswith(f"{said}nothing is written")
    pth.write_text(PTH_LINE)
    assert main(["autoload"]) == 0
    assert capsys.readouterr().out == f"{said}{pth} can go: sdpa-guard autoload --remove\n"


def test_torch_looks_by_itself_from_2_5_on_unless_told_not_to(monkeypatch):
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    assert autoload.torch_looks_by_itself() == (Release(2, 5) <= RUNNING_TORCH)
    monkeypatch.setattr(autoload, "LOADS_EXTENSIONS", False)
    assert not autoload.torch_looks_by_itself()
    monkeypatch.setattr(autoload, "LOADS_EXTENSIONS", True)
    assert autoload.torch_looks_by_itself()
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert not autoload.torch_looks_by_itself()


@pytest.mark.parametrize("arguments", [[], ["--remove"]])
def test_what_cannot_be_written_is_one_line_and_status_1(pth, monkeypatch, capsys, arguments):
    monkeypatch.setattr(autoload, "torch_looks_by_itself", lambda: False)
    pth.mkdir()
    assert main(["autoload", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("sdpa-guard autoload: ")


def test_doctor_knows_the_file(pth, capsys):
    pth.touch()
    main(["doctor", "--json"])
    start = json.loads(capsys.readouterr().out)["guard"]["start"]
    assert start == f"in place, by {PTH_FILE}"


# --- The line, in a folder that Python searches for .pth files ----------------------------------


def after_the_line(folder: Path, code: str) -> str:
    (folder / PTH_FILE).write_text(f"{PTH_LINE}\n")
    return f"import site, sys\nsite.addsitedir({str(folder)!r})\n{code}"


def test_it_waits_for_torch(tmp_path):
    loaded = 'print("torch" in sys.modules, "sdpa_guard_autoload" in sys.modules)'
    code = after_the_line(tmp_path, f"{loaded}\n{POLICY}")
    assert python("-c", code, guard="warn", **OLDER) == ("False True\nwarn", "")
    assert python("-c", code, **OLDER) == ("False False\nNone", "")


def test_it_waits_longer_where_a_program_asks_first_whether_there_is_torch(tmp_path):
    asks = 'import importlib.util\nfor _ in range(2): importlib.util.find_spec("torch")\n'
    code = after_the_line(tmp_path, asks + POLICY)
    assert python("-c", code, guard="warn", **OLDER) == ("warn", "")


def test_it_may_come_twice_and_beside_torchs_own_look(tmp_path):
    code = after_the_line(tmp_path, f"site.addsitedir({str(tmp_path)!r})\n{POLICY}")
    hooks = "print([type(f).__name__ for f in sys.meta_path].count('_WaitForTorch'))"
    assert python("-c", f"{code}\n{hooks}", guard="warn") == ("warn\n0", "")
    wrong_is_said_once = python("-c", code, guard="splti")[1]
    assert wrong_is_said_once.count("sdpa_guard: error: ") == 1


def test_it_is_silent_where_the_package_was_uninstalled(tmp_path):
    """Python would show a traceback of the line at the start of every program."""
    code = after_the_line(tmp_path, "print('runs')")
    bare = ("-I", "-S")  # without the packages of the environment
    assert python(*bare, "-c", code, guard="1") == ("runs", "")


def test_only_the_first_call_of_the_hook_does_anything(monkeypatch, capsys):
    monkeypatch.setattr(sdpa_guard_autoload, "_activated", False)
    monkeypatch.setenv("SDPA_GUARD", "splti")
    for _ in range(2):
        sdpa_guard_autoload.activate()
    assert capsys.readouterr().err.count("SDPA_GUARD must be one of") == 1
