"""The ways in which programs call attention in eager mode, each a row of the README's table."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from typing import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from helpers.route import Route, Tensors
from helpers.torch_inside import BINDING, CPU_KERNEL, fake_tensors

EARLY_ALIAS = F.scaled_dot_product_attention


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
    return step(lambda x: BINDING(x, x, x))


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


def attention_module(
    train: bool = True, batch_first: bool = True, need_weights: bool = False, **masks: torch.Tensor
) -> Callable[[], Tensors]:
    def run() -> Tensors:
        torch.manual_seed(0)
        module = nn.MultiheadAttention(16, 2, batch_first=batch_first).train(train)
        x, memory = tensor(5, 4, 16), tensor(5, 6, 16, seed=1)
        inputs = [t if batch_first else t.transpose(0, 1) for t in (x, memory, memory)]
        out = module(*inputs, need_weights=need_weights, **masks)[0]
        out.sum().backward()
        return out.detach(), x.grad, memory.grad, module.in_proj_weight.grad

    return run


#: Positions that do not count, in the second of five sequences.
KEY_PADDING = (torch.arange(5)[:, None] == 1) & (torch.arange(6) >= 3)
QUERY_PADDING = KEY_PADDING[:, 1:5]
ATTENTION_MASK = torch.ones(4, 6, dtype=torch.bool).triu(2)
ADDED_MASK = tensor(4, 6, seed=3).detach()


def native_attention_module() -> Tensors:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = tensor(5, 4, 16)
    with torch.no_grad():
        return (module(x, x, x, need_weights=False)[0],)


def encoder(train: bool) -> Tensors:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not train).train(train)
    with torch.set_grad_enabled(train):
        return (model(tensor(5, 4, 16), src_key_padding_mask=QUERY_PADDING),)


def encoder_in_training() -> Tensors:
    return tuple(out.detach()[~QUERY_PADDING] for out in encoder(train=True))


def native_encoder() -> Tensors:
    # The scoped guard turns the native path off, and with it the zeros in the padded rows.
    return tuple(out[~QUERY_PADDING] for out in encoder(train=False))


def encoder_and_decoder() -> Tensors:
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
    memory = tensor(5, 6, 16, seed=1)
    return step(lambda x: model(memory, x), tensor(5, 4, 16))


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


def checkpoint_in_a_checkpoint() -> Tensors:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(attend, x, use_reentrant=False)

    return step(lambda x: checkpoint(inner, x, use_reentrant=False))


def selective_checkpoint() -> Tensors:
    """The first chunk's output is kept, the rest is computed again."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    kept = [CPU_KERNEL]

    def contexts() -> tuple[object, object]:
        return create_selective_checkpoint_contexts(kept)

    return step(lambda x: checkpoint(attend, x, use_reentrant=False, context_fn=contexts))


def saved_on_cpu() -> Tensors:
    with torch.autograd.graph.save_on_cpu():
        return step(attend)


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


def in_a_tensor_hook() -> Tensors:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda grad: F.scaled_dot_product_attention(grad, grad, grad))
        return y

    return step(run)


def in_a_module_hook() -> Tensors:
    module = nn.Identity()
    module.register_full_backward_hook(
        lambda module, grads_in, grads_out: (F.scaled_dot_product_attention(*grads_in * 3),)
    )
    return step(module)


def double_backward() -> Tensors:
    x = query()
    mask = tensor(4, 4, seed=1)  # where a mask wants a gradient, the CPU has a second derivative
    out = F.scaled_dot_product_attention(x, x, x, mask)
    (grad,) = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
    return torch.autograd.grad(grad.square().sum(), (x, mask))


# --- Transforms and compilers -------------------------------------------------------------------


def func_grad() -> Tensors:
    return (torch.func.grad(lambda x: attend(x).sum())(query().detach()),)


def func_vmap() -> Tensors:
    # Two lanes are as many entries as the lowered bound allows, so each lane's batch is split.
    return (torch.func.vmap(attend)(tensor(2, 5, 2, 4, 8).detach()),)


def func_vjp() -> Tensors:
    out, vjp = torch.func.vjp(attend, query().detach())
    return out, *vjp(torch.ones_like(out))


def func_jacrev() -> Tensors:
    x = tensor(3, 1, 2, 2).detach()
    return (torch.func.jacrev(lambda x: attend(x).sum((1, 2, 3)))(x),)


def func_vmap_of_a_module() -> Tensors:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    run = torch.func.vmap(lambda x: module(x, x, x, need_weights=False)[0])
    return (run(tensor(2, 5, 4, 16).detach()).detach(),)


def in_saved_tensor_hooks() -> Tensors:
    """Attention that another attention call makes on its way."""

    def pack(saved: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            attend(query())
        return saved

    x = query()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        out = attend(x)
    out.sum().backward()
    return out.detach(), x.grad


class Boxed:
    """Somebody's type that makes another call of a call."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*(arg.tensor if isinstance(arg, Boxed) else arg for arg in args))


def unboxed() -> Tensors:
    return step(lambda x: F.scaled_dot_product_attention(Boxed(x), Boxed(x), Boxed(x)))


def scripted() -> Tensors:
    def attend_in_script(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    return step(torch.jit.script(attend_in_script))


def traced() -> Tensors:
    return step(torch.jit.trace(attend, query(), check_trace=False))


def fake() -> Tensors:
    with fake_tensors():
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


def in_a_pool_of_threads() -> Tensors:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(functional) for _ in range(4)]
        return tuple(tensor for run in runs for tensor in run.result())


# --- Other people's modes -----------------------------------------------------------------------


class OtherFunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class OtherDispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def inside(context: Callable[[], contextlib.AbstractContextManager]) -> Callable[[], Tensors]:
    def run() -> Tensors:
        with context():
            return step(attend)

    return run


def flop_counter() -> contextlib.AbstractContextManager:
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False)


def profiler() -> contextlib.AbstractContextManager:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


OPEN_IT_THERE = "no: open the guard in that thread's function"
GOES_PAST_BOTH = "no: torch goes past every kernel of ours there"
GOES_PAST = "no: torch goes past every kernel of ours there; use the scoped guard"
NO_SDPA = "nothing to see: it does not call SDPA"
NATIVE = "no: torch's native path makes no SDPA call on the CPU"

ROUTES = [
    Route("`F.scaled_dot_product_attention`", functional, 1),
    Route("an alias imported before the guard", early_alias, 1),
    Route("`torch._C._nn.scaled_dot_product_attention`", binding, 1),
    Route("`torch.ops.aten.scaled_dot_product_attention`", operator_packet, 1),
    Route("`torch.ops.aten.scaled_dot_product_attention.default`", operator_overload, 1),
    Route("under `torch.no_grad`", in_no_grad, 1),
    Route("under `torch.inference_mode`", in_inference_mode, 1),
    Route("under `torch.autocast`", under_autocast, 1),
    Route("`nn.MultiheadAttention`, train", attention_module(), 1),
    Route("the same, `batch_first=False`", attention_module(batch_first=False), 1),
    Route("the same, key padding mask", attention_module(key_padding_mask=KEY_PADDING), 1),
    Route("the same, boolean attention mask", attention_module(attn_mask=ATTENTION_MASK), 1),
    Route("the same, float attention mask", attention_module(attn_mask=ADDED_MASK), 1),
    Route(
        "the same, `need_weights=True`",
        attention_module(need_weights=True),
        0,
        scoped=NO_SDPA,
        process_wide=NO_SDPA,
    ),
    Route("`nn.MultiheadAttention`, eval with gradients", attention_module(train=False), 1),
    Route(
        "`nn.MultiheadAttention`, eval without gradients",
        native_attention_module,
        1,
        split_process_wide=0,
        process_wide=NATIVE,
    ),
    Route("`nn.TransformerEncoder`, train, padding mask", encoder_in_training, 2),
    Route(
        "`nn.TransformerEncoder`, eval without gradients, padding mask",
        native_encoder,
        2,
        split_process_wide=0,
        scoped="yes; padded rows are no zeros then",
        process_wide=f"{NATIVE}, padded rows stay zeros",
    ),
    Route("`nn.TransformerDecoder`, train", decoder, 4),
    Route("`nn.Transformer`, train", encoder_and_decoder, 3),
    Route("`checkpoint(use_reentrant=True)`, forward and recompute", checkpointed(True), 2),
    Route("`checkpoint(use_reentrant=False)`, forward and recompute", checkpointed(False), 2),
    Route("a checkpoint in a checkpoint", checkpoint_in_a_checkpoint, 2),
    Route("selective checkpointing", selective_checkpoint, 2),
    Route("`save_on_cpu` and other saved-tensor hooks", saved_on_cpu, 1),
    Route("`nn.MultiheadAttention` in a checkpoint", checkpointed_module, 2),
    Route("recompute in the autograd engine's threads", deeply_nested_checkpoints, 71),
    Route("attention in a custom `autograd.Function`'s backward", in_backward, 1),
    Route("the same by `torch.autograd.grad`", in_autograd_grad, 1),
    Route("attention in a tensor's hook", in_a_tensor_hook, 1),
    Route("attention in a module's backward hook", in_a_module_hook, 1),
    Route("double backward", double_backward, 1),
    Route("a type that makes another call of a call", unboxed, 1),
    Route("`torch.func.grad`", func_grad, 1),
    Route("`torch.func.vjp`", func_vjp, 1),
    Route("`torch.func.jacrev`", func_jacrev, 1),
    Route("`torch.func.vmap`", func_vmap, 1, split_process_wide=0, process_wide=GOES_PAST),
    Route(
        "`torch.func.vmap` of `nn.MultiheadAttention`",
        func_vmap_of_a_module,
        0,
        scoped=GOES_PAST_BOTH,
        process_wide=GOES_PAST_BOTH,
    ),
    Route("`torch.jit.script`", scripted, 1),
    Route("`torch.jit.trace`, while it traces and when it runs", traced, 2),
    Route("`FakeTensorMode`", fake, 1),
    Route("meta tensors", on_meta, 1),
    Route(
        "meta tensors under `torch.inference_mode`",
        on_meta_in_inference_mode,
        1,
        split_process_wide=0,
        process_wide=GOES_PAST,
    ),
    Route(
        "the same under `torch.autocast`",
        on_meta_under_autocast_in_inference_mode,
        1,
        split_process_wide=0,
        process_wide=GOES_PAST,
    ),
    Route("inside `FlopCounterMode`", inside(flop_counter), 1),
    Route("inside `torch.profiler.profile`", inside(profiler), 1),
    Route("inside another `TorchFunctionMode`", inside(OtherFunctionMode), 1),
    Route("inside another `TorchDispatchMode`", inside(OtherDispatchMode), 1),
    Route(
        "a thread started while the guard is open",
        in_another_thread,
        0,
        split_process_wide=1,
        scoped=OPEN_IT_THERE,
    ),
    Route(
        "a pool of threads",
        in_a_pool_of_threads,
        0,
        split_process_wide=4,
        scoped=OPEN_IT_THERE,
    ),
]
