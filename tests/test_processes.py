"""Other processes: what they inherit, ``SDPA_GUARD``, and the program's start and end."""

from __future__ import annotations

import textwrap

import pytest
from helpers.child import POLICY, python
from helpers.inside import (
    MODULE_BELOW,
    RUNNING_TORCH,
    Release,
)

AUTOLOADS = Release(2, 5) <= RUNNING_TORCH
needs_autoload = pytest.mark.skipif(
    not AUTOLOADS, reason="torch before 2.5 needs `sdpa-guard autoload`, which changes the install"
)


CHILDREN = """
import sys, torch, torch.multiprocessing
from helpers.route import process_wide, scoped
from sdpa_guard.testing import record_calls

def attend(results):
    x = torch.ones(5, 2, 4, 8)
    with record_calls() as calls:
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    results.put([call.query[0] for call in calls])

if __name__ == "__main__":
    method, door = sys.argv[1:]
    context = torch.multiprocessing.get_context(method)
    results = context.SimpleQueue()
    with {"scoped": scoped, "process_wide": process_wide}[door]():
        child = context.Process(target=attend, args=(results,))
        child.start()
        child.join()
    print(results.get())
"""


@pytest.mark.parametrize("door", ["scoped", "process_wide"])
def test_a_forked_process_is_guarded_as_its_parent(tmp_path, door):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    assert python(str(script), "fork", door)[0] == "[2, 2, 1]"


@pytest.mark.parametrize("door", ["scoped", "process_wide"])
def test_a_spawned_process_is_not(tmp_path, door):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    assert python(str(script), "spawn", door)[0] == "[5]"


def test_a_fork_while_other_threads_count_does_not_wait_forever():
    """The child has our locks, but not the thread that held one."""
    code = """
    import os, threading, torch, sdpa_guard
    from helpers.route import guard

    def count():
        with guard():
            pass
        sdpa_guard.report().saw()

    def work():
        while running:
            count()

    running = True
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        child = os.fork()
        if child == 0:
            count()
            os._exit(0)
        os.waitpid(child, 0)
    running = False
    for thread in threads:
        thread.join()
    print("done")
    """
    assert python("-c", textwrap.dedent(code))[0] == "done"


def test_attention_at_the_end_of_the_process():
    code = """
    import atexit, torch, sdpa_guard
    from helpers.route import DEVICE_TYPES, LOWERED

    def attend():
        x = torch.ones(5, 2, 4, 8)
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        print(sdpa_guard.report().split)

    atexit.register(attend)
    sdpa_guard.enable(limits=LOWERED, device_types=DEVICE_TYPES)
    attend()
    """
    assert python("-c", textwrap.dedent(code)) == ("1\n2", "")


def test_a_process_ends_well_after_a_scope_in_a_thread():
    """What torch keeps for a thread, it drops after the thread has ended for Python."""
    code = """
    import threading, torch
    from helpers.route import guard

    def work():
        with guard():
            x = torch.ones(5, 2, 4, 8)
            torch.nn.functional.scaled_dot_product_attention(x, x, x)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    """
    for _ in range(4):
        assert python("-c", textwrap.dedent(code)) == ("", "")


# --- SDPA_GUARD ---------------------------------------------------------------------------------


@needs_autoload
@pytest.mark.parametrize(
    ("value", "policy"),
    [("1", "split"), ("on", "split"), (" Split ", "split"), ("warn", "warn"), ("raise", "raise")],
)
def test_the_variable_guards_a_program_that_never_imports_the_package(value, policy):
    assert python("-c", POLICY, guard=value) == (policy, "")


@pytest.mark.parametrize("value", [None, "", "0", "off"])
def test_without_the_variable_nothing_is_imported(value):
    assert python("-c", POLICY, guard=value) == ("None", "")


@needs_autoload
def test_the_variable_prints_no_report_and_counts_no_call_on_the_cpu():
    code = """
    import torch
    for device in ("cpu", "cpu", "meta"):
        x = torch.ones(5, 2, 4, 8, device=device)
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    """
    code = textwrap.dedent(code)
    assert python("-c", code, guard="1") == ("", "")
    out, err = python("-c", f"{code}\nimport sdpa_guard; print(sdpa_guard.report())", guard="1")
    assert (out.splitlines()[0], err) == (
        "sdpa_guard: 1 attention calls, 0 split into 0 chunks, 0 unsplittable",
        "",
    )


@needs_autoload
def test_another_value_is_said_to_be_wrong_and_the_program_runs():
    out, err = python("-c", POLICY, guard="splti")
    assert out == "None"
    assert err == (
        "sdpa_guard: error: SDPA_GUARD must be one of 0, off, 1, on, split, warn, raise, "
        "not 'splti'; nothing is guarded"
    )


@needs_autoload
@pytest.mark.parametrize("module", ["sdpa_guard", MODULE_BELOW, "sdpa_guard.testing"])
def test_a_program_may_import_the_package_before_torch(module):
    code = f"import {module}, sdpa_guard; print(sdpa_guard.is_enabled())"
    assert python("-c", code, guard="1") == ("True", "")


@needs_autoload
def test_a_fault_at_the_start_is_said_and_the_program_runs(tmp_path):
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging" / "__init__.py").write_text("raise RuntimeError('broken')")
    code = "import torch; print(torch.ones(2).sum().item())"
    out, err = python("-c", code, guard="1", PYTHONPATH=str(tmp_path))
    assert out == "2.0"
    assert err.startswith("sdpa_guard: error: SDPA_GUARD could not be followed: RuntimeError")
    assert "broken" in err


WORKERS = """
import sys, torch
from torch.utils.data import DataLoader

class Guarded(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        guard = sys.modules.get("sdpa_guard")
        return bool(guard and guard.is_enabled())

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = DataLoader(Guarded(), num_workers=1, multiprocessing_context=method)
        print(next(iter(loader)).item())
"""


@needs_autoload
def test_forked_and_spawned_workers_follow_the_variable(tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    assert python(str(script), guard="1")[0] == "True\nTrue"
    assert python(str(script))[0] == "False\nFalse"
