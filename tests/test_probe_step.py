"""What ``probe``'s child finds wrong with a step, and what it lets pass."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lowered import BY_ID, lowered
from standin_child import SMALL
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from sdpa_guard.limits.call import BATCH
from sdpa_guard.limits.releases import RUNNING_TORCH, Release
from sdpa_guard.probing import child, reference, step
from sdpa_guard.probing.child import measure
from sdpa_guard.probing.measurement import GUARDED, UNGUARDED
from sdpa_guard.probing.runner import probe
from sdpa_guard.probing.shapes import shapes
from sdpa_guard.probing.trial import Trial

HAS_GQA = Release(2, 5) <= RUNNING_TORCH
SPLIT = lowered(BATCH, 1)
LOWERED = dataclasses.replace(BY_ID["F2b"], bound=2)

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "float16": {"dtype": "float16"},
    "no backward": {"backward": False},
    "one row": {"seq_q": 1},
    "mask": {"mask": True},
    "mask that wants a gradient": {"mask": True, "mask_requires_grad": True},
    "dropout": {"dropout_p": 0.5},
    "rows far apart": {"kv_head_stride": 32, "kv_row_stride": 256},
    "queries that look at one key": {"focused": True, "backward": False},
    "heads far apart": {"kv_head_stride": 2048, "kv_row_stride": 64},
    "one head expanded": {"kv_head_stride": 0, "kv_row_stride": 32, "seq_q": 1, "backward": False},
}
if HAS_GQA:
    KINDS["groups of heads"] = {"group": 2}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_step_passes(kind, guarded):
    tried = dataclasses.replace(SMALL, **KINDS[kind])
    assert measure(tried, guarded, "cpu", SPLIT) == "passes"


class Kernel(TorchDispatchMode):
    """The CPU's fused kernel, with wrong gradients past a batch size; remembers its batches."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self.bound = bound
        self.batches: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            self.batches.append(args[0].shape[0])
        if name.endswith("for_cpu_backward") and args[1].shape[0] > self.bound:
            return (spoiled(results[0]), *results[1:])
        return results


def test_a_guarded_step_is_split():
    with Kernel(bound=1) as kernel:
        assert measure(SMALL, False, "cpu", SPLIT) == "wrong gradients"
        assert measure(SMALL, True, "cpu", SPLIT) == "passes"
    assert kernel.batches == [3, 1, 1, 1]


@pytest.mark.parametrize("kind", ["plain", "mask that wants a gradient", "rows far apart"])
def test_the_reference_can_be_made_in_slices(kind, monkeypatch):
    monkeypatch.setattr(reference, "_ELEMENTS", 64)
    tried = dataclasses.replace(SMALL, **KINDS[kind])
    assert measure(tried, False, "cpu") == "passes"
    assert measure(tried, False, "cpu", attend=wrong_for("key")) == "wrong gradients"


class Spoil(torch.autograd.Function):
    """The tensor, and its gradient with another last row in the last entry."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):
        return spoiled(grad)


def spoiled(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed[..., -1, :] = changed.flatten()[0] + 1
    return changed


def wrong_for(name: str):
    """Attention that gives one input a wrong gradient."""

    def attend(query, key, value, mask, **options):
        inputs = {"query": query, "key": key, "value": value, "mask": mask}
        inputs[name] = Spoil.apply(inputs[name])
        query, key, value, mask = inputs.values()
        return scaled_dot_product_attention(query, key, value, mask, **options)

    return attend


@pytest.mark.parametrize("name", ["query", "key", "value", "mask"])
def test_wrong_gradients_are_found(name):
    tried = dataclasses.replace(SMALL, mask=True, mask_requires_grad=True)
    assert measure(tried, False, "cpu", attend=wrong_for(name)) == "wrong gradients"


@pytest.mark.parametrize("change", [spoiled, lambda out: out * float("nan")], ids=["row", "nan"])
def test_a_wrong_output_is_found(change):
    def attend(*arguments, **options):
        return change(scaled_dot_product_attention(*arguments, **options))

    assert measure(SMALL, False, "cpu", attend=attend) == "wrong output"


def test_a_backward_that_drops_other_elements_is_found():
    class Redrawn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return scaled_dot_product_attention(*tensors, dropout_p=0.5)

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                again = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
                out = scaled_dot_product_attention(*again, dropout_p=0.5)
            return torch.autograd.grad(out, again, grad)

    def attend(query, key, value, mask, dropout_p):
        return Redrawn.apply(query, key, value)

    tried = dataclasses.replace(SMALL, dropout_p=0.5)
    assert measure(tried, False, "cpu", attend=attend) == "wrong gradients"


#: As long as a bfloat16 sum that hides a wrong row would have to be.
LONG = Trial("E4", 1, 2, 1024, 4096, 64, "bfloat16", backward=True)


def with_a_row_of_another(tensor: torch.Tensor) -> torch.Tensor:
    """As an offset that wraps gives it: a value that is right elsewhere, and as large."""
    changed = tensor.clone()
    changed[-1, -1, -1] = tensor[-1, -1, 0]
    return changed


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_one_wrong_row_of_a_long_sequences_gradient_is_found(name, monkeypatch):
    assert measure(LONG, False, "cpu") == "passes"
    monkeypatch.setattr(sys.modules[__name__], "spoiled", with_a_row_of_another)
    assert measure(LONG, False, "cpu", attend=wrong_for(name)) == "wrong gradients"


def test_one_wrong_row_of_a_long_sequences_output_is_found():
    def attend(*arguments):
        return with_a_row_of_another(scaled_dot_product_attention(*arguments))

    assert measure(LONG, False, "cpu", attend=attend) == "wrong output"


def test_one_wrong_key_among_many_is_found_by_queries_that_look_at_it():
    tried = dataclasses.replace(LONG, focused=True, backward=False, seq_q=128)

    def attend(query, key, value, mask):
        return scaled_dot_product_attention(query, with_a_row_of_another(key), value, mask)

    assert measure(tried, False, "cpu") == "passes"
    assert measure(tried, False, "cpu", attend=attend) == "wrong output"


def test_overwritten_inputs_are_found():
    def attend(query, key, value, mask):
        out = scaled_dot_product_attention(query, key, value, mask)
        value.detach()[-1, -1, -1, -1] += 1
        return out

    tried = dataclasses.replace(SMALL, backward=False)
    assert measure(tried, False, "cpu", attend=attend) == "inputs overwritten"


def test_an_overwritten_gradient_of_the_output_is_found():
    """The reference would take it for the right one."""

    class Overwriting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            return out.view_as(out)

        @staticmethod
        def backward(ctx, grad):
            grad.detach()[-1, -1, -1, -1] += 1
            return grad

    def attend(*arguments):
        return Overwriting.apply(scaled_dot_product_attention(*arguments))

    assert measure(SMALL, False, "cpu", attend=attend) == "inputs overwritten"


def test_inputs_are_looked_at_in_parts(monkeypatch):
    """At once it would need several times their memory."""
    monkeypatch.setattr(step, "_AT_ONCE", 100)
    test_overwritten_inputs_are_found()
    assert measure(SMALL, False, "cpu") == "passes"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            RuntimeError("CUDA error: invalid configuration argument\nCompile with ..."),
            "CUDA error: invalid configuration argument",
        ),
        (RuntimeError("CUDA error: out of memory"), "out of memory"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried ..."), "out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            "out of memory",
        ),
        (RuntimeError("No available kernel. Aborting execution."), "no kernel takes it"),
        (RuntimeError("key.stride(-2) overflows"), "error: key.stride(-2) overflows"),
    ],
)
def test_torchs_own_errors_are_told(fault, words):
    def attend(*arguments, **options):
        raise fault

    assert measure(SMALL, False, "cpu", attend=attend) == words


def test_a_fault_of_the_trial_itself_is_no_measurement():
    def attend(*arguments, **options):
        raise TypeError("not torch's")

    with pytest.raises(TypeError, match="not torch's"):
        measure(SMALL, False, "cpu", attend=attend)


@pytest.mark.parametrize(
    ("fault", "is_measurement"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("The size of tensor a must match"), False),
    ],
)
def test_a_reference_without_memory_is_no_fault_of_attention(fault, is_measurement, monkeypatch):
    def fail(*arguments):
        raise fault

    monkeypatch.setattr(child, "difference", fail)
    if is_measurement:
        assert measure(SMALL, False, "cpu") == "out of memory"
    else:
        with pytest.raises(RuntimeError, match="The size"):
            measure(SMALL, False, "cpu")


def test_real_children_find_a_wrong_gradient_that_the_guard_avoids(tmp_path):
    program = tmp_path / "child.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_probe_step import LOWERED, Kernel, child\n"
        "with Kernel(LOWERED.bound):\n"
        "    child.main(sys.argv[1], device='cpu', limits=[LOWERED])\n"
    )
    found = shapes([LOWERED], RUNNING_TORCH, 1000.0, quick=True)
    command = [sys.executable, str(program)]
    outcome = probe(found, "CPU", command=command, progress=io.StringIO())
    assert [(row.shape[:4], row.how, row.measured) for row in outcome.rows] == [
        ("2x1x", UNGUARDED, "passes"),
        ("3x1x", UNGUARDED, "wrong gradients"),
        ("3x1x", GUARDED, "passes"),
    ]
    assert outcome.is_good
