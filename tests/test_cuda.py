"""What only a GPU can tell: the faults themselves, and that the guard's chunks avoid them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from sdpa_guard import LIMITS, SDPAGuard, backends
from sdpa_guard.call import Arguments
from sdpa_guard.release import RUNNING_TORCH

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

BY_ID = {limit.id: limit for limit in LIMITS}
FLASH, EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
GIB = 2**30


def needs_memory(gib: int) -> None:
    if torch.cuda.mem_get_info()[0] < gib * GIB:
        pytest.skip(f"needs {gib} GiB of free GPU memory")


def tokens(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    made = torch.randn(*shape, generator=generator, device="cuda", dtype=torch.float32)
    return made.to(dtype).requires_grad_()


def inputs(*shape: int) -> list[torch.Tensor]:
    return [tokens(*shape, seed=seed) for seed in range(3)]


def lowered(limit_id: str, bound: int) -> list:
    """One limit, lowered, on every torch: the split is what is tested."""
    everywhere = dataclasses.replace(BY_ID[limit_id], bound=bound, versions=BY_ID["E4"].versions)
    return [everywhere]


def gradients(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    found = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    return found


STEP = textwrap.dedent(
    """
    import contextlib, sys
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from sdpa_guard import SDPAGuard

    scope = SDPAGuard() if sys.argv[1] == "guarded" else contextlib.nullcontext()
    x = torch.randn(400, 4, 10496, 128, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    with scope, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        memory = x.detach()
        torch.nn.functional.scaled_dot_product_attention(x, memory, memory).sum().backward()
    torch.cuda.synchronize()
    last, memory = x.detach()[-1:].clone().requires_grad_(), memory[-1:].clone()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(last, memory, memory).sum().backward()
    torch.testing.assert_close(x.grad[-1:], last.grad)
    """
)


def step_in_a_process(how: str) -> subprocess.CompletedProcess[str]:
    """The seed's failing shape; its last entry, past the bound, is compared with itself alone."""
    command = [sys.executable, "-c", STEP, how]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_the_failing_shape_passes_guarded():
    needs_memory(22)
    result = step_in_a_process("guarded")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(
    not BY_ID["F1"].affects(RUNNING_TORCH), reason="this torch does not have the bound"
)
def test_the_failing_shape_fails_unguarded():
    needs_memory(40)
    assert step_in_a_process("unguarded").returncode != 0


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT], ids=lambda backend: backend.name)
@pytest.mark.parametrize(
    ("shape", "dim"), [((65536, 2, 4, 64), 0), ((2, 71280, 3, 64), 1)], ids=["batch", "heads"]
)
def test_past_the_grid(backend, shape, dim):
    tensors = inputs(*shape)
    with SDPAGuard() as guard, sdpa_kernel(backend):
        out = scaled_dot_product_attention(*tensors)
        out.sum().backward()
    splits_inside = backend is EFFICIENT and dim == 0 and not BY_ID["E1"].affects(RUNNING_TORCH)
    assert guard.report.split == (not splits_inside)
    found = gradients(tensors)
    for part in (slice(0, 64), slice(shape[dim] - 64, shape[dim])):
        index = (slice(None),) * dim + (part,)
        pieces = [tensor.detach()[index].clone().requires_grad_() for tensor in tensors]
        with sdpa_kernel(backend):
            expected = scaled_dot_product_attention(*pieces)
            expected.sum().backward()
        torch.testing.assert_close(out[index], expected)
        for grad, piece in zip(found, pieces):
            torch.testing.assert_close(grad[index], piece.grad)


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT], ids=lambda backend: backend.name)
@pytest.mark.parametrize("dim", [0, 1])
def test_the_last_call_inside_the_grid_is_one_call(backend, dim):
    tensors = inputs(*((65535, 1, 4, 64) if dim == 0 else (1, 65535, 4, 64)))
    with SDPAGuard() as guard, sdpa_kernel(backend):
        scaled_dot_product_attention(*tensors).sum().backward()
    assert (guard.report.calls, guard.report.split) == (1, 0)


@pytest.mark.parametrize(
    ("limit_id", "bound"), [("F1", 3 * 4 * 512 * 64), ("F1", 512 * 64), ("F1", 128 * 64)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_split_gradients_are_the_unsplit_ones(limit_id, bound, transposed):
    shape = (8, 512, 4, 64) if transposed else (8, 4, 512, 64)
    leaves = inputs(*shape)
    tensors = [leaf.transpose(1, 2) if transposed else leaf for leaf in leaves]
    results = []
    for backend, guard in (
        (FLASH, SDPAGuard(limits=lowered(limit_id, bound))),
        (FLASH, None),
        (EFFICIENT, None),
    ):
        with sdpa_kernel(backend):
            if guard is None:
                out = scaled_dot_product_attention(*tensors)
            else:
                with guard:
                    out = scaled_dot_product_attention(*tensors)
                assert guard.report.split == 1
        out.sin().sum().backward()
        results.append([out.detach(), *gradients(leaves)])
    split, whole, efficient = results
    assert split[0].stride() == whole[0].stride()
    for one, other, reference in zip(split, whole, efficient):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, reference, rtol=2e-2, atol=2e-2)


def test_a_split_step_needs_no_more_memory():
    shape = (64, 8, 2048, 64)
    peaks = {}
    for name, bound in (("split", 8 * 8 * 2048 * 64), ("whole", 2**40)):
        tensors = inputs(*shape)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        with SDPAGuard(limits=lowered("F1", bound)) as guard, sdpa_kernel(FLASH):
            scaled_dot_product_attention(*tensors).sum().backward()
        assert guard.report.split == (name == "split")
        peaks[name] = torch.cuda.max_memory_allocated()
        del tensors
    assert peaks["split"] <= 1.15 * peaks["whole"]


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT], ids=lambda backend: backend.name)
def test_torch_is_asked_for_the_backend(backend):
    tensors = inputs(2, 4, 128, 64)
    with sdpa_kernel(backend):
        assert backends.chosen(Arguments(*tensors, None, {})) == backend.name.split("_")[0].lower()


def test_only_the_chosen_backends_limits_count():
    tensors = inputs(8, 4, 128, 64)
    with SDPAGuard(limits=lowered("F1", 1)) as guard, sdpa_kernel(EFFICIENT):
        scaled_dot_product_attention(*tensors)
    assert (guard.report.calls, guard.report.split) == (1, 0)


def test_float32_under_autocast_is_a_flash_call():
    tensors = [tokens(8, 4, 128, 64, dtype=torch.float32, seed=seed) for seed in range(3)]
    guard = SDPAGuard(limits=lowered("F1", 4 * 4 * 128 * 64))
    with guard, sdpa_kernel(FLASH), torch.autocast("cuda", torch.bfloat16):
        out = scaled_dot_product_attention(*tensors)
    assert out.dtype is torch.bfloat16
    assert guard.report.chunks == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_is_split_in_the_backwards_own_threads(reentrant):
    tensors = inputs(8, 4, 128, 64)
    guard = SDPAGuard(limits=lowered("F2b", 4))
    with guard, sdpa_kernel(FLASH):
        checkpoint(scaled_dot_product_attention, *tensors, use_reentrant=reentrant).sum().backward()
    assert (guard.report.calls, guard.report.split) == (2, 2)
