"""Other processes: what they inherit, ``SDPA_GUARD``, and the program's start and end."""

from __future__ import annotations

import json
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
    for method in ("fork", "spawn"):
        context = torch.multiprocessing.get_context(method)
        for door in (scoped, process_wide):
            results = context.SimpleQueue()
            with door():
                child = context.Process(target=attend, args=(results,))
                child.start()
                child.join()
            print(method, door.__name__, results.get())
"""


def test_a_forked_process_is_guarded_as_its_parent_and_a_spawned_one_is_not(tmp_path):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    assert python(str(script))[0].splitlines() == [
        "fork scoped [2, 2, 1]",
        "fork process_wide [2, 2, 1]",
        "spawn scoped [5]",
        "spawn process_wide [5]",
    ]


def test_a_fork_while_other_threads_count_does_not_wait_forever():
    """The child has our locks, but not the thread that held one."""
    code = """
    import os, threading, torch, sdpa_guard
    from helpers.route import guard

    x = torch.ones(5, 2, 4, 8)

    def count():
        with guard() as opened:
            torch.nn.functional.scaled_dot_product_attention(x, x, x)
        assert opened.report.split == 1

    def work():
        while running:
            count()

    count()  # what torch sets up at its first call has locks of torch's own
    running = True
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    ends = []
    for _ in range(30):
        child = os.fork()
        if child == 0:
            try:
                count()
            except BaseException:
                os._exit(1)
            os._exit(0)
        ends.append(os.waitpid(child, 0)[1])
    alive = all(thread.is_alive() for thread in threads)
    running = False
    for thread in threads:
        thread.join()
    print(set(ends), alive)
    """
    assert python("-c", textwrap.dedent(code))[0] == "{0} True"


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
    import os, sys, threading, torch
    from helpers.route import guard

    def work():
        with guard():
            x = torch.ones(5, 2, 4, 8)
            torch.nn.functional.scaled_dot_product_attention(x, x, x)

    for _ in range(4):
        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            sys.exit()
        print(os.waitpid(child, 0)[1], flush=True)
    work()
    """
    assert python("-c", textwrap.dedent(code)) == ("0\n0\n0\n0", "")


# --- SDPA_GUARD ---------------------------------------------------------------------------------


VALUES = """
import json, os, sys, torch
from helpers.policy import policy
from helpers.torch_inside import look_for_extensions

assert "sdpa_guard_autoload" not in sys.modules
x = torch.empty(1, 1, 1, 8, device="meta")
torch.nn.functional.scaled_dot_product_attention(x, x, x)  # torch imports more, once for all forks
for value in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        if value is not None:
            os.environ["SDPA_GUARD"] = value
        os.dup2(1, 2)
        look_for_extensions()
        print(repr(value), policy(), "sdpa_guard" in sys.modules)
        sys.exit()
    os.waitpid(child, 0)
"""


@needs_autoload
def test_what_each_value_of_the_variable_means_as_torch_ends_its_import():
    policies = {"1": "split", "on": "split", " Split ": "split", "warn": "warn", "raise": "raise"}
    nothing = [None, "", "0", "off"]
    values = json.dumps([*policies, *nothing, "splti"])
    out, err = python("-c", VALUES, values, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    *found, wrong, left_alone = out.splitlines()
    assert found == [
        *(f"{value!r} {policy} True" for value, policy in policies.items()),
        *(f"{value!r} None False" for value in nothing),
    ]
    assert wrong == (
        "sdpa_guard: error: SDPA_GUARD must be one of 0, off, 1, on, split, warn, raise, "
        "not 'splti'; nothing is guarded"
    )
    assert (left_alone, err) == ("'splti' None False", "")


@needs_autoload
@pytest.mark.parametrize(
    ("value", "policy", "said"),
    [("1", "split", ""), ("warn", "warn", ""), ("splti", "None", "sdpa_guard: error: SDPA_GUARD")],
)
def test_the_variable_guards_a_program_that_never_imports_the_package(value, policy, said):
    out, err = python("-c", POLICY, guard=value)
    assert out == policy
    assert err.startswith(said) if said else err == ""


def test_without_the_variable_nothing_is_imported():
    code = "import sys, torch; print('sdpa_guard' in sys.modules)"
    assert python("-c", code) == ("False", "")


@needs_autoload
def test_the_variable_prints_no_report_and_counts_no_call_on_the_cpu():
    code = """
    import torch
    for device in ("cpu", "cpu", "meta"):
        x = torch.ones(5, 2, 4, 8, device=device)
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
    import sdpa_guard
    print("first", str(sdpa_guard.report()).splitlines()[0])
    """
    counted = "first sdpa_guard: 1 attention calls, 0 split into 0 chunks, 0 unsplittable"
    assert python("-c", textwrap.dedent(code), guard="1") == (counted, "")


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
