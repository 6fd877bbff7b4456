"""Compiled and exported attention under both doors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from route import DEVICE_TYPES, DOORS, LOWERED, Tensors, guard, process_wide, scoped
from torch import nn

import sdpa_guard
from sdpa_guard import SDPAGuard
from sdpa_guard.limits.releases import RUNNING_TORCH, Release

#: Rows of the README's table: the name, what the scoped guard sees, what the process-wide one sees.
ROUTES = [
    (
        "`torch.compile`, also with `fullgraph=True`, backends eager, aot_eager, inductor",
        "yes; code compiled outside follows the scope from torch 2.5 on",
        "yes; `enable` and `disable` have it compiled anew",
    ),
    (
        "a guard made before and entered inside a compiled function",
        "yes from torch 2.9 on, but not for `nn.MultiheadAttention`: open it around the compiled "
        "call; a guard made inside breaks the graph",
        "yes",
    ),
    ("eager parts of a compiled program, after graph breaks", "yes", "yes"),
    (
        "`torch.export`",
        "yes: the graph holds the chunks",
        "no: the graph keeps the call, which is split when the program runs",
    ),
    ("`make_fx`", "yes: the graph holds the chunks", "yes: the graph holds the chunks"),
    (
        "`make_fx(pre_dispatch=True)`",
        "yes: the graph holds the chunks",
        "no: the graph keeps the call, which is split when it runs",
    ),
]

FOLLOWS_SCOPES = Release(2, 5) <= RUNNING_TORCH
CAN_ASK = Release(2, 7) <= RUNNING_TORCH
TRACES_SCOPES = Release(2, 9) <= RUNNING_TORCH


@pytest.fixture(autouse=True)
def _compiled_code_is_forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def attend(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x).sin()


class Attend(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def attention_module() -> Callable[[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    return lambda x: layer(x, x, x, need_weights=False)[0]


def query(batch: int = 5) -> torch.Tensor:
    return torch.randn(batch, 2, 4, 8, generator=torch.Generator().manual_seed(0))


def sequence(batch: int = 5) -> torch.Tensor:
    return query(batch).reshape(batch, 4, 16)


#: Attention called by a function, and by a module whose function hides it from a mode.
FUNCTIONS = pytest.mark.parametrize(
    ("function", "inputs"),
    [(attend, query), (attention_module(), sequence)],
    ids=["function", "nn.MultiheadAttention"],
)


def step(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Tensors:
    """The output and the input's gradient."""
    x = x.clone().requires_grad_()
    out = function(x)
    out.sum().backward()
    return out.detach(), x.grad


class Counting:
    """A torch.compile backend that counts the attention kernels in each graph it is given."""

    def __init__(self) -> None:
        from torch._dynamo.backends.common import aot_autograd

        self.counts: list[int] = []
        self._compile = aot_autograd(fw_compiler=self._forward, bw_compiler=runs)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        return self._compile(graph, inputs)

    def _forward(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        self.counts.append(attention_nodes(graph))
        return runs(graph, inputs)


def runs(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    from functorch.compile import make_boxed_func

    return make_boxed_func(graph.forward)


def attention_nodes(graph: torch.fx.GraphModule | torch.export.ExportedProgram) -> int:
    names = [str(node.target) for node in graph.graph.nodes]
    return sum("scaled_dot_product" in name and "backward" not in name for name in names)


def batches_at_run_time(run: Callable[[], object]) -> list[int]:
    """The batch sizes of the kernels that run, whoever calls them, once they are compiled."""
    run()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        run()
    return [
        event.input_shapes[0][0]
        for event in profile.events()
        if event.name == "aten::_scaled_dot_product_flash_attention_for_cpu"
    ]


def run_here(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program that may import the tests' modules."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__), **variables},
        capture_output=True,
        text=True,
    )


# --- torch.compile ------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@FUNCTIONS
def test_a_compiled_call_is_split_with_the_unguarded_results(function, inputs, backend, door):
    x = inputs()
    expected = step(function, x)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    with door():
        torch.testing.assert_close(step(compiled, x), expected)
        assert batches_at_run_time(lambda: compiled(x)) == [2, 2, 1]


@pytest.mark.parametrize("door", DOORS)
@FUNCTIONS
def test_each_batch_size_is_split_as_it_needs(function, inputs, door):
    backend = Counting()
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    with door():
        for batch in (5, 7, 2, 1, 4):
            torch.testing.assert_close(step(compiled, inputs(batch)), step(function, inputs(batch)))
    assert backend.counts[:2] == [3, 4]


@pytest.mark.parametrize("door", DOORS)
@FUNCTIONS
def test_no_step_recompiles_or_breaks_the_graph(function, inputs, door):
    """Nor does a scope that is opened anew for each."""
    from torch._dynamo.utils import counters

    counters.clear()
    backend = Counting()
    compiled = torch.compile(function, backend=backend)
    with contextlib.ExitStack() as stack:
        if door is process_wide:
            stack.enter_context(door())
        for _ in range(4):
            with door() if door is scoped else contextlib.nullcontext():
                step(compiled, inputs())
    assert backend.counts == [3]
    assert not counters["graph_break"]


@FUNCTIONS
@pytest.mark.parametrize("door", DOORS)
def test_compiled_code_follows_the_guard(function, inputs, door):
    """Compiled without, called with, and without again."""
    if door is scoped and not FOLLOWS_SCOPES:
        pytest.skip("before torch 2.5 dynamo does not guard on open scopes")
    x = inputs()
    expected = step(function, x)
    backend = Counting()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for context in (contextlib.nullcontext, door, contextlib.nullcontext):
        with context():
            torch.testing.assert_close(step(compiled, x), expected)
    assert backend.counts == ([1, 3] if door is scoped else [1, 3, 1])


@pytest.mark.parametrize("door", DOORS)
@FUNCTIONS
def test_code_compiled_after_the_guard_is_as_without_one(function, inputs, door):
    """torch.compile remembers for itself which kernels an operator has."""
    x = inputs()
    with door():
        step(torch.compile(function, backend="aot_eager"), x)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager")
    torch.testing.assert_close(step(compiled, x), step(function, x))
    assert batches_at_run_time(lambda: compiled(x)) == [5]


def test_compiled_code_is_that_of_the_inner_scope():
    if not TRACES_SCOPES:
        pytest.skip("before torch 2.9 dynamo does not trace the guard")
    four = tuple(dataclasses.replace(limit, bound=4) for limit in LOWERED)
    backend = Counting()
    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    with guard(), SDPAGuard(limits=four, device_types=DEVICE_TYPES):
        step(compiled, query())
    assert backend.counts == [2]


@pytest.mark.skipif(not TRACES_SCOPES, reason="before torch 2.9 dynamo does not trace the guard")
@FUNCTIONS
def test_a_guard_entered_inside_a_compiled_function(function, inputs):
    opened = guard()

    def guarded(x: torch.Tensor) -> torch.Tensor:
        with opened:
            return function(x)

    backend = Counting()
    actual = step(torch.compile(guarded, backend=backend, fullgraph=True), inputs())
    assert backend.counts == [3 if function is attend else 1]
    torch.testing.assert_close(actual, step(function, inputs()))


def test_a_guard_made_inside_a_compiled_function_breaks_the_graph():
    def attend_guarded(x: torch.Tensor) -> torch.Tensor:
        with SDPAGuard(limits=LOWERED, device_types=DEVICE_TYPES):
            return attend(x)

    compiled = torch.compile(attend_guarded, backend="aot_eager")
    torch.testing.assert_close(step(compiled, query()), step(attend, query()))
    assert batches_at_run_time(lambda: compiled(query())) == [2, 2, 1]


@pytest.mark.parametrize("door", DOORS)
def test_eager_parts_of_a_compiled_program_are_guarded_and_not_compiled(door):
    """Where dynamo gives a frame up, attention meets the guard while dynamo still looks on."""
    from torch._dynamo.utils import counters

    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        try:
            torch._dynamo.graph_break()
            return F.scaled_dot_product_attention(x, x, x)
        finally:
            pass

    def frames() -> int:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(lambda x: broken(x.sin()).cos(), backend="eager")
        for _ in range(3):
            compiled(query())
        return counters["frames"]["total"]

    unguarded = frames()
    with door() as report:
        assert frames() <= unguarded
    assert (report.calls, report.split) == (3, 3)


THREADS = """
import threading, warnings, torch
from route import process_wide
from test_compiled import attend, query

warnings.simplefilter("ignore")
compiled = torch.compile(attend, backend="aot_eager")
expected = compiled(query())
running, wrong = True, []

def work():
    while running:
        try:
            torch.testing.assert_close(compiled(query()), expected)
        except BaseException as error:
            wrong.append(error)

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(100):
    with process_wide():
        pass
running = False
for thread in threads:
    thread.join()
print(wrong)
"""


def test_enable_and_disable_while_other_threads_run_compiled_code():
    result = run_here(THREADS)
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


CACHED = """
import contextlib, sys, torch
from test_compiled import FUNCTIONS, batches_at_run_time, step
from route import process_wide, scoped

doors = {"none": contextlib.nullcontext, "scoped": scoped, "process_wide": process_wide}
with doors[sys.argv[1]]():
    for function, inputs in FUNCTIONS.args[1]:
        compiled = torch.compile(function, fullgraph=True)
        step(compiled, inputs())
        print(batches_at_run_time(lambda: compiled(inputs())))
"""


def test_code_on_disk_is_found_again_by_equal_settings_only(tmp_path):
    """torch looks it up by the graph that it has before our kernel splits a call."""
    for door in ("none", "scoped", "process_wide", "none"):
        result = run_here(CACHED, door, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
        expected = "[5]\n[5]\n" if door == "none" else "[2, 2, 1]\n[2, 2, 1]\n"
        assert result.stdout == expected, (door, result.stderr)


# --- Export and tracing -------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_the_chunks(strict):
    x = query()
    with scoped():
        program = torch.export.export(Attend(), (x,), strict=strict)
    assert attention_nodes(program) == 3
    torch.testing.assert_close(program.module()(x), Attend()(x))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_are_split_when_they_run(strict):
    x = query()
    with process_wide():
        program = torch.export.export(Attend(), (x,), strict=strict).module()
        assert batches_at_run_time(lambda: program(x)) == [2, 2, 1]
    torch.testing.assert_close(program(x), Attend()(x))


@contextlib.contextmanager
def real_limits(door: Callable[..., object]) -> Iterator[None]:
    """The door with the limits as they are: no call here is over one."""
    if door is scoped:
        with SDPAGuard(device_types=DEVICE_TYPES):
            yield
        return
    sdpa_guard.enable(device_types=DEVICE_TYPES)
    try:
        yield
    finally:
        sdpa_guard.disable()


@pytest.mark.skipif(not CAN_ASK, reason="torch before 2.7 cannot be asked about such sizes")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_batch_stays_as_open_as_it_was(strict, door):
    open_batch = ({0: torch.export.Dim("batch")},)
    with real_limits(door):
        program = torch.export.export(
            Attend(), (query(),), dynamic_shapes=open_batch, strict=strict
        )
    torch.testing.assert_close(program.module()(query(9)), Attend()(query(9)))
    assert max(size.upper for size in program.range_constraints.values()) > 65535


@pytest.mark.skipif(not CAN_ASK, reason="torch before 2.7 cannot be asked about such sizes")
@pytest.mark.parametrize("door", DOORS)
def test_sizes_that_only_the_data_tell_are_left_alone(door):
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return attend(x[x[:, 0, 0, 0] > -9])

    with real_limits(door), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(chosen, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(query()), attend(query()))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_graphs_hold_the_chunks(pre_dispatch, door):
    from torch.fx.experimental.proxy_tensor import make_fx

    x = query()
    with door():
        graph = make_fx(attend, pre_dispatch=pre_dispatch)(x)
        assert batches_at_run_time(lambda: graph(x)) == [2, 2, 1]
    keeps_the_call = door is process_wide and pre_dispatch
    assert attention_nodes(graph) == (1 if keeps_the_call else 3)
    torch.testing.assert_close(graph(x), attend(x))
