"""What only a GPU can tell: the faults themselves, and that the guard's chunks avoid them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pytest
import torch
from helpers.child import ended
from helpers.inside import (
    RUNNING_TORCH,
    Release,
    bind,
    torch_answers,
)
from helpers.lowered import BATCH, BY_ID, CONTIGUOUS, HEADS, NESTED, ROWS, lowered
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import sdpa_guard
from sdpa_guard import Limit, SDPAGuard, check

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

DEVICE = "cuda"
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
HAS_GQA = Release(2, 5) <= RUNNING_TORCH
GIB = 2**30

Shape = tuple[int, int, int, int]


@pytest.fixture(autouse=True)
def give_back_memory() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def needs_memory(gib: float) -> None:
    if torch.cuda.mem_get_info()[0] < gib * GIB:
        pytest.skip(f"needs {gib:.0f} GiB of free GPU memory")


def only(backend: str) -> contextlib.AbstractContextManager[None]:
    return sdpa_kernel(BACKENDS[backend])


def randn(
    *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0, requires_grad: bool = True
) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    made = torch.randn(*shape, generator=generator, device=DEVICE, dtype=dtype)
    return made.requires_grad_(requires_grad)


def inputs(*shape: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [randn(*shape, dtype=dtype, seed=seed) for seed in range(3)]


def lowest(backend: str, axis: str, bound: int) -> list[Limit]:
    """A limit of that backend, in every torch release, which the axis cures."""
    return [dataclasses.replace(limit, backend=backend) for limit in lowered(axis, bound)]


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


# --- The faults, each in a process of its own ---------------------------------------------------

#: One training step, whose gradients must be those of a few batch entries by themselves.
STEP = textwrap.dedent(
    """
    import contextlib, sys
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    from sdpa_guard import SDPAGuard

    def train(x):
        with sdpa_kernel(getattr(SDPBackend, sys.argv[2])):
            scaled_dot_product_attention(x, x, x).sum().backward()

    shape = [int(size) for size in sys.argv[3:]]
    x = torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    guard = SDPAGuard()
    with guard if sys.argv[1] == "guarded" else contextlib.nullcontext():
        train(x)
    torch.cuda.synchronize()
    for entries, gradients in zip(x.detach().split(50), x.grad.split(50)):
        alone = entries.clone().requires_grad_()
        train(alone)
        torch.testing.assert_close(gradients, alone.grad, rtol=2e-2, atol=2e-2)
    print(guard.report.chunks)
    """
)

#: Both were reported: PriorLabs/TabPFN#1184, and Dao-AILab/flash-attention#2260.
FAILING = [(400, 4, 10496, 128), (8300, 16, 1, 128)]
PAST_THE_GRID = [("flash", BATCH), ("flash", HEADS), ("efficient", HEADS)]

each_failing_shape = pytest.mark.parametrize(
    "shape", FAILING, ids=lambda shape: "x".join(map(str, shape))
)


def step_in_a_process(how: str, backend: str, shape: Shape) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STEP, how, BACKENDS[backend].name, *map(str, shape)]
    return ended(*command)


def needs_memory_for_a_whole_step(shape: Shape) -> None:
    """Input, output and four gradients in bfloat16, the float32 workspace, and some room."""
    tensor = 2 * math.prod(shape)
    workspace = 4 * BY_ID["F1"].counted(check(*shape).call)
    needs_memory((6 * tensor + workspace) / GIB + 2)


@each_failing_shape
def test_a_failing_shape_passes_guarded(shape):
    needs_memory_for_a_whole_step(shape)
    plan = check(*shape, backends=["flash"]).plan
    result = step_in_a_process("guarded", "flash", shape)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == (len(plan) if plan else 0)


@each_failing_shape
def test_a_failing_shape_passes_where_the_process_is_guarded(shape):
    needs_memory_for_a_whole_step(shape)
    code = f"import sdpa_guard\nsdpa_guard.enable()\n{STEP}\nprint(sdpa_guard.report().chunks)"
    command = [sys.executable, "-c", code, "unguarded", BACKENDS["flash"].name, *map(str, shape)]
    result = ended(*command)
    assert result.returncode == 0, result.stderr
    plan = check(*shape, backends=["flash"]).plan
    assert result.stdout.split() == ["0", str(len(plan) if plan else 0)]


@each_failing_shape
def test_a_failing_shape_fails_unguarded(shape):
    if check(*shape, backends=["flash"]).ok:
        pytest.skip(f"torch {RUNNING_TORCH} does not have the bound")
    needs_memory_for_a_whole_step(shape)
    result = step_in_a_process("unguarded", "flash", shape)
    assert result.returncode != 0
    # Killed by the fault, or wrong; running out of memory would be neither.
    assert "CUDA error" in result.stderr or "AssertionError" in result.stderr, result.stderr


def past_the_grid(axis: str) -> Shape:
    """One of pytorch/pytorch#146704, one of Dao-AILab/flash-attention#1812, with smaller dims."""
    return (65536, 2, 4, 64) if axis == BATCH else (2, 71280, 3, 64)


@pytest.mark.parametrize(("backend", "axis"), PAST_THE_GRID)
def test_a_call_past_the_grid_fails_unguarded(backend, axis):
    needs_memory(8)
    result = step_in_a_process("unguarded", backend, past_the_grid(axis))
    assert result.returncode != 0
    assert "CUDA error" in result.stderr, result.stderr


# --- Past and at the real bounds ----------------------------------------------------------------


@pytest.mark.parametrize(("backend", "axis"), [*PAST_THE_GRID, ("efficient", BATCH), (None, BATCH)])
def test_a_call_past_the_grid_is_its_pieces(backend, axis):
    """Without a backend named, chunks may go to another one than the whole call would."""
    needs_memory(8)
    tensors = inputs(*past_the_grid(axis))
    kernels = only(backend) if backend else contextlib.nullcontext()
    with SDPAGuard() as guard, kernels:
        out = scaled_dot_product_attention(*tensors)
        out.sin().sum().backward()
    splits_inside = (backend, axis) == ("efficient", BATCH) and Release(2, 8) <= RUNNING_TORCH
    assert guard.report.chunks == (0 if splits_inside else 2)
    dim = 0 if axis == BATCH else 1
    middle = tensors[0].shape[dim] // 2
    for start in (0, middle - 32, tensors[0].shape[dim] - 64):
        pieces = [t.detach().narrow(dim, start, 64).float().requires_grad_() for t in tensors]
        with only("math"):
            expected = scaled_dot_product_attention(*pieces)
            expected.sin().sum().backward()
        assert_close(out.narrow(dim, start, 64).float(), expected)
        for tensor, piece in zip(tensors, pieces):
            assert_close(tensor.grad.narrow(dim, start, 64).float(), piece.grad)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_past_the_grid_without_a_backward(mode):
    query = randn(65536, 1, 4, 64, requires_grad=False)
    with SDPAGuard() as guard, only("flash"), getattr(torch, mode)():
        out = scaled_dot_product_attention(query, query, query)
        expected = scaled_dot_product_attention(query[-64:], query[-64:], query[-64:])
    assert guard.report.chunks == 2
    assert_close(out[-64:], expected)


@pytest.mark.parametrize("backend", ["flash", "efficient"])
@pytest.mark.parametrize("shape", [(65535, 1, 4, 64), (1, 65535, 4, 64)], ids=["batch", "heads"])
def test_the_last_call_inside_the_grid_is_one_call(backend, shape):
    needs_memory(6)
    tensors = inputs(*shape)
    with SDPAGuard() as guard, only(backend):
        scaled_dot_product_attention(*tensors).sum().backward()
    torch.cuda.synchronize()
    assert (guard.report.calls, guard.report.split) == (1, 0)


@torch.no_grad()
def test_key_rows_past_the_bound_are_read_right():
    """E8, silently wrong without the guard (kohya-ss/musubi-tuner#1089)."""
    needs_memory(8)
    length, stride = 101_000, 21_504
    rows = randn(1, 1, length, stride, requires_grad=False)
    key, value = rows[..., :64], rows[..., 64:128]
    query = 16 * key[:, :, -128:]  # so long that each row attends to its own key alone
    with SDPAGuard() as guard, only("efficient"):
        out = scaled_dot_product_attention(query, key, value)
    assert guard.report.split == 1
    assert_close(out, value[:, :, -128:])


@torch.no_grad()
def test_mask_rows_past_the_bound_are_read_right():
    """E6, silently wrong without the guard (pytorch/pytorch#187227)."""
    needs_memory(12)
    length = 65_664
    mask = torch.zeros(length, length, dtype=torch.bfloat16, device=DEVICE)
    mask[-64:, :-1] = -math.inf
    query = randn(1, 1, length, 64, requires_grad=False)
    with SDPAGuard() as guard, only("efficient"):
        out = scaled_dot_product_attention(query, query, query, mask)
    assert guard.report.chunks == (2 if BY_ID["E6"].affects(RUNNING_TORCH) else 0)
    assert_close(out[:, :, -64:], query[:, :, -1:].expand(1, 1, 64, 64))


# --- Exactness, with limits lowered to small calls ----------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of 6 batch entries, 4 heads, 320 rows and 64 dims, and the axis that is split."""

    backend: str
    axis: str
    kv_heads: int = 4
    is_causal: bool = False
    masked: bool = False
    length_before_heads: bool = False

    def bound(self) -> int:
        return {BATCH: 2, HEADS: 2, NESTED: 2, ROWS: 128, CONTIGUOUS: 320 * 64}[self.axis]

    def leaves(self) -> list[torch.Tensor]:
        made = []
        for seed, heads in enumerate((4, self.kv_heads, self.kv_heads)):
            shape = (6, 320, heads, 64) if self.length_before_heads else (6, heads, 320, 64)
            made.append(randn(*shape, seed=seed))
        return [*made, randn(4, 320, 320, seed=3)] if self.masked else made

    def step(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """The output and every input's gradient."""
        query, key, value, *mask = leaves
        if self.length_before_heads:
            query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        options = {"is_causal": self.is_causal}
        if self.kv_heads != 4:
            options["enable_gqa"] = True
        out = scaled_dot_product_attention(query, key, value, *mask, **options)
        out.sin().sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]


CASES = [
    *[Case("flash", axis) for axis in (BATCH, HEADS, ROWS, NESTED)],
    *[Case("flash", axis, length_before_heads=True) for axis in (BATCH, HEADS, ROWS, NESTED)],
    *[Case("flash", axis, is_causal=True) for axis in (BATCH, HEADS, NESTED)],
    *[Case("efficient", axis, masked=True) for axis in (BATCH, HEADS, ROWS, NESTED)],
    *[Case("efficient", axis, length_before_heads=True) for axis in (BATCH, HEADS, CONTIGUOUS)],
]
if HAS_GQA:
    CASES += [Case("flash", axis, kv_heads=2) for axis in (BATCH, HEADS, ROWS)]


def case_id(case: Case) -> str:
    facts = [name for name, fact in dataclasses.asdict(case).items() if fact is True]
    groups = [] if case.kv_heads == 4 else ["gqa"]
    return "-".join([case.backend, case.axis, *facts, *groups])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_split_step_is_as_close_to_the_math_as_the_whole(case):
    guard = SDPAGuard(limits=lowest(case.backend, case.axis, case.bound()))
    with only(case.backend):
        whole = case.step(case.leaves())
        with guard:
            split = case.step(case.leaves())
    assert guard.report.split == 1
    assert split[0].stride() == whole[0].stride()
    with only("math"):
        exact = case.step([leaf.detach().float().requires_grad_() for leaf in case.leaves()])
    for one, other, reference in zip(split, whole, exact):
        # Where rows are split, sums of gradients are rounded once a chunk.
        allowed = 3 * distance(other, reference) + 4e-3 * reference.abs().max().item()
        assert distance(one, reference) <= allowed


def distance(tensor: torch.Tensor, reference: torch.Tensor) -> float:
    return (tensor.float() - reference).abs().max().item()


# --- Memory -------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """Self-attention with its projections, as a model has it."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        width = heads * head_dim
        options = {"dtype": torch.bfloat16, "device": DEVICE}
        self.shape = (3, heads, head_dim)
        self.project = torch.nn.Linear(width, 3 * width, **options)
        self.out = torch.nn.Linear(width, width, **options)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        qkv = self.project(tokens).unflatten(-1, self.shape).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2))


def attend_to_leaves() -> Callable[[], None]:
    tensors = inputs(64, 8, 2048, 64)
    return lambda: scaled_dot_product_attention(*tensors).sum().backward()


def attend_in_a_layer() -> Callable[[], None]:
    layer, tokens = Layer(8, 64), randn(64, 2048, 8 * 64)
    return lambda: layer(tokens).sum().backward()


@pytest.mark.parametrize("chunks", [2, 8])
@pytest.mark.parametrize("make_step", [attend_to_leaves, attend_in_a_layer])
def test_a_split_step_needs_no_more_memory(make_step, chunks):
    needs_memory(6)
    split = SDPAGuard(limits=lowest("flash", BATCH, 64 // chunks))
    peak(make_step, contextlib.nullcontext())  # cuBLAS takes its workspace once
    whole_peak = peak(make_step, contextlib.nullcontext())
    assert peak(make_step, split) <= 1.15 * whole_peak
    assert split.report.chunks == chunks


def peak(
    make_step: Callable[[], Callable[[], None]], scope: contextlib.AbstractContextManager[object]
) -> int:
    step = make_step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with scope, only("flash"):
        step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


# --- The backend --------------------------------------------------------------------------------


class Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def backend(self) -> Optional[str]:
        """The fused backend among them; None is the math path."""
        for backend in ("flash", "efficient", "cudnn"):
            if f"_scaled_dot_product_{backend}_attention" in self.names:
                return backend
        return None


def half(*shape: int) -> torch.Tensor:
    return randn(*(shape or (2, 4, 128, 64)))


KINDS = {
    "half": lambda: bind(half(), half(), half()),
    "no backward": lambda: bind(*[half().detach()] * 3),
    "float32": lambda: bind(*inputs(2, 4, 128, 64, dtype=torch.float32)),
    "float64": lambda: bind(*inputs(2, 4, 128, 64, dtype=torch.float64)),
    "mask": lambda: bind(half(), half(), half(), half(128, 128).detach()),
    "mask that wants a gradient": lambda: bind(half(), half(), half(), half(128, 128)),
    "causal": lambda: bind(half(), half(), half(), is_causal=True),
    "causal, two lengths": lambda: bind(half(2, 4, 64, 64), half(), half(), is_causal=True),
    "dropout": lambda: bind(half(), half(), half(), dropout_p=0.25),
    "one query row": lambda: bind(half(2, 4, 1, 64), half(), half()),
    "two head dims": lambda: bind(half(), half(), half(2, 4, 128, 32)),
    "a large head dim": lambda: bind(*[half(2, 4, 128, 320)] * 3),
    "the last batch inside the grid": lambda: bind(*[half(65535, 1, 2, 16)] * 3),
}
if HAS_GQA:
    KINDS["groups of heads"] = lambda: bind(
        half(), half(2, 2, 128, 64), half(2, 2, 128, 64), enable_gqa=True
    )


@pytest.mark.parametrize("allowed", [None, "flash", "efficient"])
@pytest.mark.parametrize("kind", KINDS)
def test_torch_uses_the_backend_that_it_names(kind, allowed):
    query, key, value, mask, options = arguments = KINDS[kind]()
    kernels = contextlib.nullcontext()
    if allowed:
        kernels = sdpa_kernel([BACKENDS[allowed], SDPBackend.MATH])
    with kernels:
        named = torch_answers.choice(arguments).backends
        with Operators() as operators:
            scaled_dot_product_attention(query, key, value, mask, **options)
    assert {operators.backend()} - {None} == named
    assert allowed is None or named <= {allowed}


def test_only_the_chosen_backends_limits_count():
    tensors = inputs(8, 4, 128, 64)
    with SDPAGuard(limits=lowest("flash", BATCH, 2)) as guard, only("efficient"):
        scaled_dot_product_attention(*tensors)
    assert (guard.report.calls, guard.report.split) == (1, 0)


def test_float32_is_a_flash_call_under_autocast_alone():
    tensors = inputs(8, 4, 128, 64, dtype=torch.float32)
    guard = SDPAGuard(limits=lowest("flash", BATCH, 4))
    with guard, sdpa_kernel([BACKENDS["flash"], SDPBackend.MATH]):
        scaled_dot_product_attention(*tensors)
        assert (guard.report.calls, guard.report.split) == (1, 0)
        with torch.autocast(DEVICE, torch.bfloat16):
            out = scaled_dot_product_attention(*tensors)
        out.sum().backward()
    assert out.dtype is torch.bfloat16
    assert all(tensor.grad.dtype is torch.float32 for tensor in tensors)
    assert (guard.report.calls, guard.report.chunks) == (2, 2)
    (site,) = guard.report.as_dict()["sites"]
    assert site["shape"] == "8x4x128x64 bfloat16"


def test_torch_is_asked_only_about_a_call_past_a_bound():
    inside, beyond = inputs(4, 4, 128, 64), inputs(5, 4, 128, 64)
    with SDPAGuard(limits=lowest("flash", BATCH, 4)) as guard, only("flash"):
        with Operators() as quiet:
            scaled_dot_product_attention(*inside).sum().backward()
        with Operators() as asking:
            scaled_dot_product_attention(*beyond).sum().backward()
    assert (guard.report.calls, guard.report.split) == (2, 1)
    assert quiet.backend() == asking.backend() == "flash"
    assert "_fused_sdp_choice" not in quiet.names
    assert "_fused_sdp_choice" in asking.names


# --- Backward -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_is_split_in_the_backwards_own_threads(reentrant):
    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        # A recompute stops at the last saved tensor; the sine's input comes after the attention.
        return scaled_dot_product_attention(*tensors).sin()

    def gradients(scope: contextlib.AbstractContextManager[object]) -> list[torch.Tensor]:
        tensors = inputs(8, 4, 128, 64)
        with scope, only("flash"):
            checkpoint(attend, *tensors, use_reentrant=reentrant).sum().backward()
        return [tensor.grad for tensor in tensors]

    guard = SDPAGuard(limits=lowest("flash", BATCH, 4))
    for actual, expected in zip(gradients(guard), gradients(contextlib.nullcontext())):
        assert_close(actual, expected)
    assert (guard.report.calls, guard.report.split, guard.report.chunks) == (2, 2, 4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_process_wide_guard_splits_the_recompute(reentrant):
    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(*tensors).sin()

    def gradients() -> list[torch.Tensor]:
        tensors = inputs(8, 4, 128, 64)
        with only("flash"):
            out = checkpoint(attend, *tensors, use_reentrant=reentrant)
            out.sum().backward()
        return [tensor.grad for tensor in tensors]

    expected = gradients()
    sdpa_guard.enable(limits=lowest("flash", BATCH, 4))
    try:
        actual = gradients()
    finally:
        sdpa_guard.disable()
    for one, other in zip(actual, expected):
        assert_close(one, other)
    assert (sdpa_guard.report().calls, sdpa_guard.report().chunks) == (2, 4)


def test_the_native_path_of_attention_modules_is_guarded_where_it_calls_attention():
    module = torch.nn.MultiheadAttention(256, 4, batch_first=True).to(DEVICE, torch.bfloat16).eval()
    x = randn(8, 128, 256, requires_grad=False)

    def attend() -> torch.Tensor:
        with torch.inference_mode():
            return module(x, x, x, need_weights=False)[0]

    expected = attend()
    sdpa_guard.enable(limits=lowest("flash", BATCH, 4))
    try:
        actual = attend()
    finally:
        sdpa_guard.disable()
    assert_close(actual, expected)
    assert (sdpa_guard.report().calls, sdpa_guard.report().chunks) == (1, 2)


# --- The example --------------------------------------------------------------------------------


def test_the_example_trains():
    example = Path(__file__).parent.parent / "examples" / "train_cuda.py"
    sizes = ["--batch", "8", "--seq", "512"]
    command = [sys.executable, str(example), *sizes]
    result = ended(*command)
    assert result.returncode == 0, result.stderr
    for part in ("gradient finite: True", "peak memory", "1 attention calls"):
        assert part in result.stdout
