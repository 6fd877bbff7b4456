"""``sdpa-guard run``: as ``python`` would run it, guarded."""

from __future__ import annotations

import functools
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest
from helpers.child import POLICY, ended
from helpers.commands import SCRIPT, command

PROGRAM = """
import sys, torch, sdpa_guard
from helpers.policy import policy
from helpers.route import DEVICE_TYPES, LOWERED

def attend():
    x = torch.ones(5, 2, 4, 8)
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)

asked = policy()
print(asked, sys.argv[1:])
sdpa_guard.enable(asked, limits=LOWERED, device_types=DEVICE_TYPES)
attend()
"""

#: More than the variable says.
OPTION = ("--policy", "warn")


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return ended(sys.executable, *command, **options)


@pytest.fixture
def guarded(fork) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python -m sdpa_guard run`` in a process that has torch already."""
    return functools.partial(fork, "run")


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)


def test_the_program_is_guarded_and_the_report_comes_last(program):
    result = run("-m", "sdpa_guard", "run", "program.py", "--policy", "hers", "-m")
    assert result.stdout == "split ['--policy', 'hers', '-m']\n"
    assert result.stderr.startswith("sdpa_guard: 1 attention calls, 1 split into 3 chunks")
    assert "program.py:8" in result.stderr


def test_the_console_script_does_the_same(program):
    assert "1 split into 3 chunks" in ended(SCRIPT, "run", "program.py").stderr


def test_the_policy_is_the_programs(program, guarded):
    result = guarded("--policy", "raise", "program.py")
    assert result.returncode == 1
    assert "OversizedCallError" in result.stderr


@pytest.mark.parametrize(
    ("variables", "file"), [({}, "report.json"), ({"RANK": "3"}, "report.rank3.json")]
)
def test_the_report_as_json(program, guarded, variables, file):
    result = guarded("--report", "report.json", "program.py", env=variables)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(Path(file).read_text())["split"] == 1


def test_the_report_as_json_on_standard_output(program, guarded):
    result = guarded("--report", "-", "program.py")
    assert json.loads(result.stdout.splitlines()[-1])["chunks"] == 3
    assert result.stderr == ""


def test_a_report_that_cannot_be_written_is_said_and_the_status_stays(program, guarded):
    Path("reports").mkdir()
    Path("program.py").write_text("import os; os.rmdir('reports'); raise SystemExit(3)")
    result = guarded("--report", "reports/report.json", "program.py")
    assert (result.returncode, result.stdout) == (3, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("sdpa-guard: the report could not be written: ")


def test_a_child_that_the_program_forks_gives_no_report_of_its_own(program, guarded):
    Path("program.py").write_text("import os\nif os.fork(): os.wait()\nprint('ends', flush=True)")
    result = guarded("program.py")
    assert result.stdout == "ends\nends\n"
    assert result.stderr.count("sdpa_guard: 0 attention calls") == 1


INSPECTED = """
import os, sys
main = sys.modules["__main__"]
print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0])
print(main.__dict__ is globals(), type(__loader__).__name__, __builtins__ is not None)
print(sorted(name for name in globals() if name not in ("os", "sys", "main", "__annotations__")))
"""


@pytest.mark.parametrize("way", ["a file", "a linked file", "a folder", "a module", "a package"])
def test_the_program_finds_itself_as_python_would_leave_it(tmp_path, guarded, monkeypatch, way):
    monkeypatch.chdir(tmp_path)
    folder = Path("package")
    folder.mkdir()
    for file in (Path("file.py"), folder / "__main__.py", folder / "__init__.py"):
        file.write_text(INSPECTED if file.name != "__init__.py" else "")
    Path("elsewhere").mkdir()
    Path("elsewhere/link.py").symlink_to("../file.py")
    arguments = {
        "a file": ["file.py", "-x", "1"],
        "a linked file": ["elsewhere/link.py", "1"],
        "a folder": ["package", "1"],
        "a module": ["-m", "file", "1"],
        "a package": ["-m", "package", "-m"],
    }[way]
    expected, actual = run(*arguments), guarded(*arguments)
    assert expected.stdout
    assert actual.stdout == expected.stdout


@pytest.mark.parametrize(
    "ending",
    [
        "raise ValueError('no')",
        "def f(): 1 / 0\nf()",
        "raise SystemExit(7)",
        "raise SystemExit('why')",
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
        "x = (",
        "import nowhere",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\n1 / 0",
        "import atexit\natexit.register(print, 'bye')\nraise KeyError",
    ],
)
def test_the_program_ends_as_python_would_end_it(tmp_path, guarded, monkeypatch, ending):
    monkeypatch.chdir(tmp_path)
    Path("ending.py").write_text(ending)
    expected, actual = run("ending.py"), guarded("--report", "report.json", "ending.py")
    assert actual.returncode == expected.returncode
    assert actual.stdout == expected.stdout
    assert actual.stderr == expected.stderr
    assert json.loads(Path("report.json").read_text())["calls"] == 0


def test_a_missing_module_is_what_python_says(tmp_path, guarded):
    expected, actual = run("-m", "nowhere"), guarded("--report", "-", "-m", "nowhere")
    assert (actual.returncode, actual.stderr) == (expected.returncode, expected.stderr)


def test_ctrl_c_is_the_signals(program, guarded):
    Path("program.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    assert guarded("program.py").returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "argument SCRIPT: no such file: 'nowhere.py'"),
        (["--policy", "slice", "x.py"], "argument --policy: invalid choice: 'slice'"),
        (["--report", "no/where.json", "program.py"], "argument --report: cannot write a file at"),
        (["--report", ".", "program.py"], "argument --report: cannot write a file at '.'"),
        (["--report", "program.py/x", "program.py"], "argument --report: cannot write a file at"),
        (["--report", "", "program.py"], "argument --report: a file's name cannot be empty"),
        ([""], "argument SCRIPT: no such file: ''"),
        ([], "the following arguments are required"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(program, arguments, message):
    result = command("run", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"sdpa-guard run: error: {message}")


def test_a_script_that_cannot_be_read_is_a_usage_error(program):
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind("socket.py")
    result = command("run", "socket.py")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("sdpa-guard run: error: argument SCRIPT: cannot be read: ")


def test_help_says_which_policy_is_in_force():
    said = " ".join(command("run", "--help").stdout.split())
    assert "what to do with a call over a limit, whatever SDPA_GUARD says" in said
    assert "(default: what SDPA_GUARD says, split if it is not set)" in said
    assert "[-m] SCRIPT [ARGS ...]" in said


@pytest.mark.parametrize(
    ("arguments", "value", "policy"),
    [((), "raise", "raise"), ((), " ON ", "split"), ((), "", "split"), (OPTION, "raise", "warn")],
)
def test_the_policy_is_the_option_else_the_variable_else_split(
    program, guarded, arguments, value, policy
):
    Path("program.py").write_text(POLICY)
    result = guarded(*arguments, "program.py", env={"SDPA_GUARD": value})
    assert (result.returncode, result.stdout) == (0, f"{policy}\n")


def test_the_option_decides_also_where_torch_has_followed_the_variable(program):
    Path("program.py").write_text(POLICY)
    result = run("-m", "sdpa_guard", "run", *OPTION, "program.py", env={"SDPA_GUARD": "raise"})
    assert (result.returncode, result.stdout) == (0, "warn\n")


@pytest.mark.parametrize("arguments", [(), ("--report", "report.json")])
def test_the_variable_can_say_that_nothing_is_guarded(program, guarded, arguments):
    Path("program.py").write_text("import sdpa_guard; print(sdpa_guard.is_enabled())")
    result = guarded(*arguments, "program.py", env={"SDPA_GUARD": "0"})
    assert (result.returncode, result.stdout) == (0, "False\n")
    assert result.stderr == "sdpa-guard run: nothing is guarded, as SDPA_GUARD=0 says\n"
    assert not arguments or json.loads(Path("report.json").read_text())["calls"] == 0


def test_a_wrong_variable_is_a_usage_error_only_where_it_decides(program, guarded):
    wrong = {"SDPA_GUARD": "splti", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    result = guarded("program.py", env=wrong)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2
    assert line.startswith("sdpa-guard run: error: without --policy, SDPA_GUARD must be one of")
    assert guarded("--policy", "split", "program.py", env=wrong).returncode == 0


def test_processes_that_the_program_spawns_inherit_the_guard(program, guarded):
    Path("program.py").write_text("import os; print(os.environ['SDPA_GUARD'])")
    assert guarded("--policy", "warn", "program.py").stdout == "warn\n"
