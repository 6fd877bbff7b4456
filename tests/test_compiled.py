"""Compiled and exported attention under both doors."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Iterator
from typing import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.child import ended
from helpers.compiling import (
    FUNCTIONS,
    Attend,
    Counting,
    attend,
    attention_nodes,
    batches_at_run_time,
    both,
    query,
    step,
)
from helpers.inside import (
    RUNNING_TORCH,
    Release,
)
from helpers.route import DEVICE_TYPES, DOORS, LOWERED, guard, process_wide, scoped
from helpers.torch_inside import break_the_graph, dynamos_counters, sizes_of_data_in_graphs

import sdpa_guard
from sdpa_guard import OversizedCallError, SDPAGuard

FOLLOWS_SCOPES = Release(2, 5) <= RUNNING_TORCH
CAN_ASK = Release(2, 7) <= RUNNING_TORCH
TRACES_SCOPES = Release(2, 9) <= RUNNING_TORCH


@pytest.fixture(autouse=True)
def _compiled_code_is_forgotten():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# --- torch.compile ------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_a_compiled_call_is_split_with_the_unguarded_results(backend, door):
    x = query()
    expected = step(both, x)
    compiled = torch.compile(both, backend=backend, fullgraph=True)
    with door():
        torch.testing.assert_close(step(compiled, x), expected)
        assert batches_at_run_time(lambda: compiled(x)) == 2 * [2, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_each_batch_size_is_split_as_it_needs(door):
    backend = Counting()
    compiled = torch.compile(both, backend=backend, fullgraph=True, dynamic=True)
    with door():
        for batch in (5, 7, 2, 1, 4):
            torch.testing.assert_close(step(compiled, query(batch)), step(both, query(batch)))
    assert backend.counts[:2] == [2 * 3, 2 * 4]


@pytest.mark.parametrize("door", DOORS)
def test_no_step_recompiles_or_breaks_the_graph(door):
    """Nor does a scope that is opened anew for each."""
    counters = dynamos_counters()
    counters.clear()
    backend = Counting()
    compiled = torch.compile(both, backend=backend)
    with contextlib.ExitStack() as stack:
        if door is process_wide:
            stack.enter_context(door())
        for _ in range(4):
            with door() if door is scoped else contextlib.nullcontext():
                step(compiled, query())
    assert backend.counts == [2 * 3]
    assert not counters["graph_break"]


@pytest.mark.parametrize("door", DOORS)
def test_compiled_code_follows_the_guard(door):
    """Compiled without, called with, and without again."""
    if door is scoped and not FOLLOWS_SCOPES:
        pytest.skip("before torch 2.5 dynamo does not guard on open scopes")
    x = query()
    expected = step(both, x)
    backend = Counting()
    compiled = torch.compile(both, backend=backend, fullgraph=True)
    for context in (contextlib.nullcontext, door, contextlib.nullcontext):
        with context():
            torch.testing.assert_close(step(compiled, x), expected)
    assert backend.counts == ([2, 6] if door is scoped else [2, 6, 2])


@pytest.mark.parametrize("door", DOORS)
def test_code_compiled_after_the_guard_is_as_without_one(door):
    """torch.compile remembers for itself which kernels an operator has."""
    x = query()
    with door():
        step(torch.compile(both, backend="aot_eager"), x)
    torch.compiler.reset()
    compiled = torch.compile(both, backend="aot_eager")
    torch.testing.assert_close(step(compiled, x), step(both, x))
    assert batches_at_run_time(lambda: compiled(x)) == [5, 5]


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
    counters = dynamos_counters()

    def broken(x: torch.Tensor) -> torch.Tensor:
        break_the_graph()
        try:
            break_the_graph()
            return F.scaled_dot_product_attention(x, x, x)
        finally:
            pass

    def frames() -> int:
        torch.compiler.reset()
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
from helpers.compiling import attend, query
from helpers.route import process_wide

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
    result = ended(sys.executable, "-c", THREADS)
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


CACHED = """
import contextlib, functools, os, sys, torch
from helpers.compiling import batches_at_run_time, both, query
from helpers.route import process_wide, scoped

doors = {"none": contextlib.nullcontext, "scoped": scoped, "process_wide": process_wide}
# What the compiler sets up once, for all forks; torch allows no backward before them.
torch.compile(torch.sin)(torch.ones(2))
torch.compiler.reset()

scale, *names = sys.argv[1:]
for name in names:
    if os.fork():
        os.wait()
        continue
    with doors[name]():
        compiled = torch.compile(functools.partial(both, scale=float(scale)), fullgraph=True)
        x = query().requires_grad_()
        print(name, batches_at_run_time(lambda: compiled(x)))
    break
"""


@pytest.mark.slow
def test_code_on_disk_is_found_again_by_equal_settings_only():
    """torch looks it up by the graph that it has before our kernel splits a call."""
    doors = ("none", "scoped", "process_wide", "none")
    never_on_disk_before = 0.5 + random.SystemRandom().random()
    result = ended(sys.executable, "-c", CACHED, never_on_disk_before, *doors)
    once = {"none": [5], "scoped": [2, 2, 1], "process_wide": [2, 2, 1]}
    expected = [f"{door} {2 * once[door]}" for door in doors]
    assert result.stdout.splitlines() == expected, result.stderr


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


def test_another_batch_of_a_transposed_query_is_split_in_one_graph():
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    with guard():
        for batch in (5, 6):
            x = query(batch).transpose(1, 2).contiguous().transpose(1, 2)
            torch.testing.assert_close(compiled(x), attend(x))
            assert batches_at_run_time(lambda x=x: compiled(x)) == [2, 2, batch - 4]


class AttendAs(torch.nn.Module):
    """Attention of one kind of call."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = x[:, :1].expand(-1, x.shape[1], -1, -1) if self.kind == "one key/value head" else x
        mask = torch.zeros(x.shape[2], x.shape[2]) if self.kind == "masked" else None
        causal = self.kind == "causal"
        return F.scaled_dot_product_attention(x, key, key, mask, is_causal=causal)


@pytest.mark.skipif(not CAN_ASK, reason="torch before 2.7 cannot be asked about such sizes")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["plain", "causal", "one key/value head", "masked"])
def test_an_exported_length_stays_open(kind, door):
    open_sizes = ({0: torch.export.Dim("batch"), 2: torch.export.Dim("length")},)
    with real_limits(door):
        program = torch.export.export(AttendAs(kind), (query(),), dynamic_shapes=open_sizes)
    longer = torch.randn(9, 2, 130, 8)
    torch.testing.assert_close(program.module()(longer), AttendAs(kind)(longer))


@pytest.mark.skipif(not CAN_ASK, reason="torch before 2.7 cannot be asked about such sizes")
@pytest.mark.parametrize("door", DOORS)
def test_sizes_that_only_the_data_tell_are_left_alone(door):
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return attend(x[x[:, 0, 0, 0] > -9])

    with real_limits(door), sizes_of_data_in_graphs():
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


def test_while_it_is_traced_a_call_over_a_limit_is_refused_or_left_as_the_policy_says():
    settings = {"limits": LOWERED, "device_types": DEVICE_TYPES}
    with SDPAGuard("raise", **settings), pytest.raises(OversizedCallError, match="counted 5 > "):
        torch.export.export(Attend(), (query(),), strict=False)
    with SDPAGuard("warn", **settings):
        program = torch.export.export(Attend(), (query(),), strict=False)
    assert attention_nodes(program) == 1
