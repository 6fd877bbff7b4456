"""What ``probe``'s child finds wrong with a step, and what it lets pass."""

from __future__ import annotations

import dataclasses
import io
import sys

import pytest
import torch
from helpers.child import TESTS
from helpers.inside import (
    RUNNING_TORCH,
)
from helpers.inside_probe import (
    GUARDED,
    UNGUARDED,
    child,
    measure,
    probe,
    reference,
    shapes,
    step,
)
from helpers.trials import (
    KINDS,
    LONG,
    LOWERED,
    SMALL,
    SPLIT,
    Kernel,
    spoiled,
    with_a_row_of_another,
    wrong_for,
)
from torch.nn.functional import scaled_dot_product_attention


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_step_passes(kind, guarded):
    tried = dataclasses.replace(SMALL, **KINDS[kind])
    assert measure(tried, guarded, "cpu", SPLIT) == "passes"


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


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_one_wrong_row_of_a_long_sequences_gradient_is_found(name):
    assert measure(LONG, False, "cpu") == "passes"
    attend = wrong_for(name, with_a_row_of_another)
    assert measure(LONG, False, "cpu", attend=attend) == "wrong gradients"


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


@pytest.mark.slow
def test_real_children_find_a_wrong_gradient_that_the_guard_avoids(tmp_path):
    program = tmp_path / "child.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(TESTS)!r})\n"
        "from helpers.inside_probe import child\n"
        "from helpers.trials import LOWERED, Kernel\n"
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
