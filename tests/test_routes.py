"""The ways in which programs call attention, and which of them the scoped guard sees.

Every row of the README's table of routes is a test here, and the table is held to this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

from sdpa_guard import LIMITS, SDPAGuard
from sdpa_guard.release import RUNNING_TORCH, Release

EARLY_ALIAS = F.scaled_dot_product_attention

#: Lowered bounds: every call of more than two batch entries must be split.
LOWERED = tuple(
    dataclasses.replace(limit, bound=2) for limit in LIMITS if limit.id in ("F2b", "E1")
)

Tensors = tuple[torch.Tensor, ...]


def guard() -> SDPAGuard:
    return SDPAGuard(limits=LOWERED, device_types=("cpu", "meta"))


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_()


def query(device: str = "cpu") -> torch.Tensor:
    return tensor(5, 2, 4, 8).detach().to(device).requires_grad_()


def step(attend: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor | None = None) -> Tensors:
    """One training step: the output and the input's gradient."""
    x = query() if x is None else x
    out = attend(x)
    out.sin().sum().backward()
    return out.detach(), x.grad


def attend(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x).sin()


# --- Python -------------------------------------------------------------------------------------


def functional() -> Tensors:
    return step(lambda x: F.scaled_dot_product_attention(x, x, x))


def early_alias() -> Tensors:
    return step(lambda x: EARLY_ALIAS(query=x, key=x, value=x))


def binding() -> Tensors:
    return step(lambda x: torch._C._nn.scaled_dot_product_attention(x, x, x))


def operator_packet() -> Tensors:
    return step(lambda x: torch.ops.aten.scaled_dot_product_attention(x, x, x))


def operator_overload() -> Tensors:
    return step(lambda x: torch.ops.aten.scaled_dot_product_attention.default(x, x, x))


def in_no_grad() -> Tensors:
    with torch.no_grad():
        return (attend(query()),)


def in_inference_mode() -> Tensors:
    with torch.inference_mode():
        return (attend(torch.ones(5, 2, 4, 8)),)


def under_autocast() -> Tensors:
    key, value = tensor(5, 2, 4, 8, seed=1), tensor(5, 2, 4, 8, seed=2)
    with torch.autocast("cpu", torch.bfloat16):
        return step(lambda x: F.scaled_dot_product_attention(x, key, value))


# --- Modules ------------------------------------------------------------------------------------


def attention_module(train: bool, **options: bool) -> Callable[[], Tensors]:
    def run() -> Tensors:
        torch.manual_seed(0)
        module = nn.MultiheadAttention(16, 2, batch_first=True).train(train)
        x, memory = tensor(5, 4, 16), tensor(5, 6, 16, seed=1)
        out = module(x, memory, memory, need_weights=False, **options)[0]
        out.sum().backward()
        return out.detach(), x.grad, memory.grad, module.in_proj_weight.grad

    return run


def encoder(train: bool) -> Callable[[], Tensors]:
    def run() -> Tensors:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(train)
        padding = torch.zeros(5, 4, dtype=torch.bool)
        padding[1, 2:] = True
        with torch.set_grad_enabled(train):
            out = model(tensor(5, 4, 16), src_key_padding_mask=padding)
        return (out.detach()[~padding],)

    return run


def decoder() -> Tensors:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerDecoder(layer, 2)
    memory = tensor(5, 6, 16, seed=1)
    return step(lambda x: model(x, memory), tensor(5, 4, 16))


# --- Autograd -----------------------------------------------------------------------------------


def checkpointed(reentrant: bool) -> Callable[[], Tensors]:
    return lambda: step(lambda x: checkpoint(attend, x, use_reentrant=reentrant))


def checkpointed_module() -> Tensors:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 2, batch_first=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return module(x, x, x, need_weights=False)[0]

    return step(lambda x: checkpoint(run, x, use_reentrant=False), tensor(5, 4, 16))


def deeply_nested_checkpoints() -> Tensors:
    """Past a depth of sixty the engine runs the backward in a thread of its own, as on CUDA."""

    def nest(x: torch.Tensor, depth: int = 70) -> torch.Tensor:
        if depth == 0:
            return attend(x)
        return checkpoint(lambda y: nest(y, depth - 1) * 1.0, x, use_reentrant=True)

    return step(nest)


class AttendInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return F.scaled_dot_product_attention(x, x, grad)


def in_backward() -> Tensors:
    return step(AttendInBackward.apply)


def in_autograd_grad() -> Tensors:
    x = query()
    return torch.autograd.grad(AttendInBackward.apply(x).sum(), x)


# --- Transforms and compilers -------------------------------------------------------------------


def func_grad() -> Tensors:
    return (torch.func.grad(lambda x: attend(x).sum())(query().detach()),)


def func_vmap() -> Tensors:
    # Two lanes are as many entries as the lowered bound allows, so each lane's batch is split.
    return (torch.func.vmap(attend)(tensor(2, 5, 2, 4, 8).detach()),)


def scripted() -> Tensors:
    def attend_in_script(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    return step(torch.jit.script(attend_in_script))


def traced() -> Tensors:
    return step(torch.jit.trace(attend, query(), check_trace=False))


def fake() -> Tensors:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        shape = attend(torch.empty(5, 2, 4, 8, requires_grad=True)).shape
    return (torch.ones(shape),)


def on_meta() -> Tensors:
    return (torch.ones(attend(query("meta")).shape),)


def on_meta_in_inference_mode() -> Tensors:
    with torch.inference_mode():
        return (torch.ones(attend(torch.empty(5, 2, 4, 8, device="meta")).shape),)


def on_meta_under_autocast_in_inference_mode() -> Tensors:
    with torch.autocast("cpu", torch.bfloat16):
        return on_meta_in_inference_mode()


def in_another_thread() -> Tensors:
    results: list[Tensors] = []
    thread = threading.Thread(target=lambda: results.append(functional()))
    thread.start()
    thread.join()
    return results[0]


@dataclasses.dataclass(frozen=True)
class Route:
    name: str
    run: Callable[[], Tensors]
    #: How many attention calls of it the guard splits; compiled code is not counted.
    split: int
    instead: str = ""


ROUTES = [
    Route("`F.scaled_dot_product_attention`", functional, 1),
    Route("an alias imported before the scope", early_alias, 1),
    Route("`torch._C._nn.scaled_dot_product_attention`", binding, 1),
    Route("`torch.ops.aten.scaled_dot_product_attention`", operator_packet, 1),
    Route("`torch.ops.aten.scaled_dot_product_attention.default`", operator_overload, 1),
    Route("under `torch.no_grad`", in_no_grad, 1),
    Route("under `torch.inference_mode`", in_inference_mode, 1),
    Route("under `torch.autocast`", under_autocast, 1),
    Route("`nn.MultiheadAttention`, train", attention_module(train=True), 1),
    Route("`nn.MultiheadAttention`, eval", attention_module(train=False), 1),
    Route("`nn.TransformerEncoder`, train", encoder(train=True), 2),
    Route("`nn.TransformerEncoder`, eval (valid rows)", encoder(train=False), 2),
    Route("`nn.TransformerDecoder`, train", decoder, 4),
    Route("`checkpoint(use_reentrant=True)`, forward and recompute", checkpointed(True), 2),
    Route("`checkpoint(use_reentrant=False)`, forward and recompute", checkpointed(False), 2),
    Route("`nn.MultiheadAttention` in a checkpoint", checkpointed_module, 2),
    Route("recompute in the autograd engine's threads", deeply_nested_checkpoints, 71),
    Route("attention in a custom `autograd.Function`'s backward", in_backward, 1),
    Route("the same by `torch.autograd.grad`", in_autograd_grad, 1),
    Route("`torch.func.grad`", func_grad, 1),
    Route("`torch.func.vmap`", func_vmap, 1),
    Route("`torch.jit.script`", scripted, 1),
    Route("`torch.jit.trace`, while it traces and when it runs", traced, 2),
    Route("`FakeTensorMode`", fake, 1),
    Route("meta tensors", on_meta, 1),
    Route("meta tensors under `torch.inference_mode`", on_meta_in_inference_mode, 1),
    Route("the same under `torch.autocast`", on_meta_under_autocast_in_inference_mode, 1),
    Route(
        "a thread started inside the scope",
        in_another_thread,
        0,
        "open the guard in that thread's function",
    ),
]


#: Rows whose tests stand further down.
OTHER_ROUTES = [
    (
        "`checkpoint(use_reentrant=True)`, backward after the scope",
        "forward yes; recompute no: keep the backward inside the scope",
    ),
    (
        "`checkpoint(use_reentrant=False)`, backward after the scope",
        "no, torch raises `CheckpointError`: keep the backward inside the scope, or open it "
        "inside the checkpointed function",
    ),
    (
        "`torch.compile`, called inside the scope",
        "yes; code compiled outside follows the scope from torch 2.5 on",
    ),
    ("`torch.export`, `make_fx` inside the scope", "yes: the graph holds the chunks"),
    ("nested and jagged tensors, `CausalBias`, tensor subclasses", "passed through untouched"),
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore::DeprecationWarning")
def test_the_route_is_split_with_the_unguarded_results(route):
    expected = route.run()
    with guard() as opened:
        actual = route.run()
    assert opened.report.split == route.split
    for one, other in zip(actual, expected):
        torch.testing.assert_close(one, other)


def test_a_checkpoint_opened_after_the_scope_recomputes_unguarded():
    """use_reentrant=True: the recompute is right, but no longer guarded."""
    with guard() as opened:
        x = query()
        out = checkpoint(attend, x, use_reentrant=True)
    out.sin().sum().backward()
    assert opened.report.split == 1
    torch.testing.assert_close(x.grad, checkpointed(True)()[1])


def test_a_checkpoint_without_reentrance_refuses_a_backward_after_the_scope():
    """use_reentrant=False: torch counts other saved tensors in the recompute and says so."""
    with guard():
        out = checkpoint(attend, query(), use_reentrant=False)
    with pytest.raises(CheckpointError):
        out.sum().backward()


def test_attention_that_ends_a_checkpoint_is_counted_in_the_recompute():
    """torch stops such a recompute inside the last chunk."""
    with guard() as opened:
        step(lambda x: checkpoint(F.scaled_dot_product_attention, x, x, x, use_reentrant=False))
    assert (opened.report.split, opened.report.chunks) == (2, 6)


def test_a_scope_opened_inside_the_checkpoint_covers_its_recompute():
    def guarded(x: torch.Tensor) -> torch.Tensor:
        with opened:
            return attend(x)

    opened = guard()
    actual = step(lambda x: checkpoint(guarded, x, use_reentrant=False))
    assert opened.report.split == 2
    torch.testing.assert_close(actual, checkpointed(False)())


class Counting:
    """A torch.compile backend that counts the attention kernels in each graph it is given."""

    def __init__(self, inner: str) -> None:
        from torch._dynamo.backends.common import aot_autograd

        self.counts: list[int] = []
        self._compile = self._count if inner == "eager" else aot_autograd(fw_compiler=self._forward)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        return self._compile(graph, inputs)

    def _count(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        self.counts.append(attention_nodes(graph))
        return graph.forward

    def _forward(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        from functorch.compile import make_boxed_func

        return make_boxed_func(self._count(graph, inputs))


def attention_nodes(graph: torch.fx.GraphModule | torch.export.ExportedProgram) -> int:
    names = [str(node.target) for node in graph.graph.nodes]
    return sum("scaled_dot_product" in name and "backward" not in name for name in names)


def compiled_attention(module: bool) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    if not module:
        return attend, query()
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    return lambda x: layer(x, x, x, need_weights=False)[0], tensor(5, 4, 16)


@pytest.mark.parametrize("module", [False, True], ids=["function", "nn.MultiheadAttention"])
def test_compiled_inside_the_scope(module):
    torch._dynamo.reset()
    function, x = compiled_attention(module)
    expected = step(function, x.detach().requires_grad_())
    backend = Counting("aot")
    with guard():
        actual = step(torch.compile(function, backend=backend, fullgraph=True), x)
    torch.testing.assert_close(actual, expected)
    assert backend.counts[0] == 3


def test_compiled_by_inductor_inside_the_scope():
    torch._dynamo.reset()
    with guard():
        actual = step(torch.compile(attend, fullgraph=True))
    torch.testing.assert_close(actual, step(attend))


@pytest.mark.parametrize("module", [False, True], ids=["function", "nn.MultiheadAttention"])
def test_compiled_code_follows_the_scope(module):
    """Compiled outside, called inside, then outside again: dynamo guards on the open scopes."""
    torch._dynamo.reset()
    function, x = compiled_attention(module)
    backend = Counting("aot")
    compiled_function = torch.compile(function, backend=backend, fullgraph=True)
    with torch.no_grad():
        expected = function(x)
        for scope in (contextlib.nullcontext(), guard(), contextlib.nullcontext()):
            with scope:
                torch.testing.assert_close(compiled_function(x), expected)
    # On torch before 2.5 dynamo does not guard on them: what was compiled outside stays unsplit.
    assert backend.counts == ([1, 3] if Release(2, 5) <= RUNNING_TORCH else [1])


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_the_chunks(strict):
    class Attend(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    x = query().detach()
    with guard():
        program = torch.export.export(Attend(), (x,), strict=strict)
    assert attention_nodes(program) == 3
    torch.testing.assert_close(program.module()(x), Attend()(x))


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_graphs_hold_the_chunks(pre_dispatch):
    from torch.fx.experimental.proxy_tensor import make_fx

    x = query().detach()
    with guard():
        graph = make_fx(attend, pre_dispatch=pre_dispatch)(x)
    assert attention_nodes(graph) == 3
    torch.testing.assert_close(graph(x), attend(x))


def table() -> list[str]:
    """The README's table of routes."""
    rows = ["| attention called by | seen by `with SDPAGuard():` |", "|---|---|"]
    for route in ROUTES:
        seen = "yes" if route.split else f"no: {route.instead}"
        rows.append(f"| {route.name} | {seen} |")
    return rows + [f"| {name} | {seen} |" for name, seen in OTHER_ROUTES]
