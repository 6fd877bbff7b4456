"""A split call is the whole call: results, gradients, layout, randomness and errors.

Everything runs on the CPU, which stands in for CUDA, with limits lowered to small shapes.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Callable, Optional

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from helpers.exactness_cases import HAS_GQA, SPLITS, Case, attend, build, cases
from helpers.inside import (
    RUNNING_TORCH,
    Arguments,
    Plan,
    Release,
    run_plan,
)
from helpers.lowered import BATCH, BY_ID, CONTIGUOUS, HEADS, NESTED, ROWS, lowered
from helpers.torch_inside import is_view
from hypothesis import example, given, settings
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from sdpa_guard import SDPAGuard, SDPAGuardWarning

FUSES_3D = Release(2, 14) <= RUNNING_TORCH
#: What rounding may change, relative to the largest value: torch adds up in another order.
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def outcome(case: Case, scope: contextlib.AbstractContextManager[Any]) -> Any:
    """The error of the call, or its result and the leaves with their gradients."""
    leaves, arguments = build(case)
    try:
        with scope, getattr(torch, case.grad_mode)():
            out = attend(arguments)
    except Exception as error:
        return error
    if out.requires_grad:
        (out * torch.randn_like(out, memory_format=torch.contiguous_format)).sum().backward()
    return out, leaves


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, computed_in: torch.dtype, terms: float = 1.0
) -> None:
    """Equal in dtype, device, shape, and in value but for the rounding of a sum of ``terms``."""
    rounding = max(ROUNDING[computed_in], ROUNDING[expected.dtype])
    largest = expected.nan_to_num(0, 0, 0).abs().max().item()
    atol = rounding * (max(1.0, terms) ** 0.5 + largest)
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol, equal_nan=True)


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides that mean anything: those of a dimension of size one do not."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape) if size > 1]


@settings(max_examples=300, deadline=None, derandomize=True, print_blob=True)
@given(cases())
@example(Case(batch=2, heads=1, kv_heads=1, layouts=("expanded batch",) * 3))
def test_a_split_call_is_the_whole_call(case: Case) -> None:
    guard = case.guard()
    whole, split = outcome(case, contextlib.nullcontext()), outcome(case, guard)
    if isinstance(whole, Exception):
        assert (type(split), str(split)) == (type(whole), str(whole))
        return
    assert not isinstance(split, Exception), repr(split)
    key, value = build(case)[1][1:3]
    rows = max(key.stride(2), value.stride(2))
    far_apart = case.seq_k > 1 and rows > max(case.head_dim, case.value_dim)
    over = case.axis != CONTIGUOUS or far_apart
    chunks = case.fewest_chunks() if over else 0
    assert (guard.report.calls, guard.report.split, guard.report.chunks) == (1, over, chunks)
    (out, leaves), (expected, expected_leaves) = split, whole
    assert_close(out, expected, case.dtype)
    assert steps(out) == steps(expected)
    assert out.requires_grad == expected.requires_grad
    assert out.is_inference() == expected.is_inference()
    for leaf, expected_leaf in zip(leaves, expected_leaves):
        assert (leaf.grad is None) == (expected_leaf.grad is None)
        if leaf.grad is not None:
            products = case.batch * case.heads * case.seq_q * case.seq_k * case.head_dim
            assert_close(leaf.grad, expected_leaf.grad, case.dtype, products / leaf.numel())


def test_rows_of_a_causal_call_are_never_split() -> None:
    """torch aligns the causal mask to a chunk's first row, whichever row of the whole that is."""
    case = Case(axis=ROWS, is_causal=True)
    guard, arguments = case.guard(), build(case)[1]
    with guard, pytest.warns(SDPAGuardWarning, match="is_causal forbids splitting query rows"):
        out = attend(arguments)
    assert (guard.report.split, guard.report.unsplittable) == (0, 1)
    assert torch.equal(out, attend(arguments))


WRONG: dict[str, Callable[[Arguments], Arguments]] = {
    # With one head dim, torch before 2.14 takes this on the CPU alone.
    "causal with a mask": lambda a: a._replace(value=a.value[..., 1:], options={"is_causal": True}),
    "a mask of whole numbers": lambda a: a._replace(attn_mask=torch.ones(3, 3, dtype=torch.int64)),
    "a mask of less precision": lambda a: a._replace(attn_mask=torch.ones(3, 3).half()),
    "a mask that does not broadcast": lambda a: a._replace(attn_mask=torch.ones(2, 3)),
    "a mask of five dimensions": lambda a: a._replace(attn_mask=torch.ones(1, 1, 1, 3, 3).double()),
    "dropout over one": lambda a: a._replace(options={"dropout_p": 1.5}),
    "a scale that is no number": lambda a: a._replace(options={"scale": "small"}),
    "an unknown option": lambda a: a._replace(options={"causal": True}),
    "two head dims": lambda a: a._replace(key=a.key[..., 1:]),
    "two key lengths": lambda a: a._replace(value=a.value[:, :, 1:]),
    "two numbers of heads": lambda a: a._replace(query=torch.cat([a.query] * 2, 1)[:, 1:]),
    "two dtypes": lambda a: a._replace(key=a.key.float()),
    "whole numbers": lambda a: a._replace(
        query=a.query.int(), key=a.key.int(), value=a.value.int()
    ),
    "no key": lambda a: a._replace(key=None),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("axis", SPLITS)
def test_a_wrong_call_fails_as_without_the_guard(axis: str, wrong: str) -> None:
    case = Case(axis=axis, mask_kind="float", mask_shape=(3, 3), needs_grad=frozenset())
    arguments = WRONG[wrong](build(case)[1])
    with pytest.raises((AttributeError, IndexError, RuntimeError, TypeError)) as expected:
        attend(arguments)
    with case.guard(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SDPAGuardWarning)  # no rows are split with is_causal
        with pytest.raises(expected.type) as raised:
            attend(arguments)
    assert str(raised.value) == str(expected.value)


DIFFERENTIABLE = {
    "batch": Case(axis=BATCH, value_dim=3),
    "heads": Case(axis=HEADS, value_dim=3),
    "rows": Case(axis=ROWS, value_dim=3),
    "nested": Case(axis=NESTED, value_dim=3),
    "copied": Case(axis=CONTIGUOUS, value_dim=3, layouts=("length before heads",) * 3),
    "causal": Case(axis=BATCH, value_dim=3, is_causal=True),
    "masked batch": Case(axis=BATCH, mask_kind="float", mask_shape=(2, 1, 3, 3)),
    "masked heads": Case(axis=HEADS, mask_kind="float", mask_shape=(2, 1, 3)),
    "masked rows": Case(axis=ROWS, size=2, mask_kind="float", mask_shape=(3, 3)),
    "mask for all": Case(axis=NESTED, mask_kind="float", mask_shape=(1, 3)),
}
if HAS_GQA:
    DIFFERENTIABLE["groups of heads"] = Case(axis=HEADS, heads=4, value_dim=3)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first_and_second_derivatives(name: str) -> None:
    """Different head dims or a mask that wants a gradient: torch then takes its math kernel."""
    case = DIFFERENTIABLE[name]
    *tensors, options = build(case)[1]
    inputs = [t.detach().requires_grad_() for t in tensors if t is not None]
    if case.mask_kind:
        inputs[3].data.clamp_(min=-1.0)  # no finite difference at minus infinity

    def attention(*given: torch.Tensor) -> torch.Tensor:
        query, key, value, *mask = given
        return attend(Arguments(query, key, value, mask[0] if mask else None, options))

    with case.guard() as guard:
        assert gradcheck(attention, inputs)
        assert gradgradcheck(attention, inputs)
    assert guard.report.split == guard.report.calls > 0


def dropping(p: float) -> tuple[torch.Tensor, Arguments]:
    """A value, and a call on it whose result shows which weights were dropped, how the rest scale.

    The weights are all 1/64, and the value is the identity.
    """
    scores = torch.zeros(4, 4, 64, 8)
    value = torch.eye(64).repeat(4, 4, 1, 1).requires_grad_()
    return value, Arguments(scores, scores, value, None, {"dropout_p": p})


@pytest.mark.parametrize("axis", SPLITS)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_and_scales_as_ever(axis: str, p: float) -> None:
    value, arguments = dropping(p)
    torch.manual_seed(0)
    with Case(axis=axis, size=2, batch=4, heads=4, kv_heads=4).guard() as guard:
        out = attend(arguments)
    assert guard.report.split == 1
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (64 * (1 - p))))
    # 65536 weights: five standard deviations are 0.01 at most.
    assert abs(1 - kept.float().mean().item() - p) < 0.01
    # No chunk repeats another's choice.
    assert len(kept.reshape(-1, 2 * 64).unique(dim=0)) == 4 * 4 * 64 / 2
    # The backward drops what the forward dropped.
    grad = torch.randn_like(out)
    out.backward(grad)
    torch.testing.assert_close(value.grad, out.detach().mT @ grad)


@pytest.mark.parametrize("axis", SPLITS)
def test_dropout_of_everything(axis: str) -> None:
    value, arguments = dropping(1.0)
    whole = attend(arguments)
    (expected,) = torch.autograd.grad(whole.sum(), value)
    with Case(axis=axis).guard() as guard:
        split = attend(arguments)
    assert guard.report.split == 1
    torch.testing.assert_close(split, whole, equal_nan=True)
    (grad,) = torch.autograd.grad(split.sum(), value)
    torch.testing.assert_close(grad, expected, equal_nan=True)


def test_dropout_draws_from_the_default_generator() -> None:
    _, arguments = dropping(0.5)

    def seeded(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with Case(size=2).guard():
            return attend(arguments)

    assert torch.equal(seeded(0), seeded(0))
    assert not torch.equal(seeded(0), seeded(1))
    split = seeded(0)
    torch.manual_seed(0)
    chunks = run_plan.split(Plan(BATCH, (2, 2)), arguments)
    assert torch.equal(split, torch.cat([attend(chunk) for chunk in chunks]))
    before = torch.get_rng_state()
    with Case().guard() as guard:
        attend(dropping(0.0)[1])
    assert guard.report.split == 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mask_shape", [(4, 4, 4, 3), (4, 1, 1, 1), (4, 4, 1), (4, 3), (3,), ()])
@pytest.mark.parametrize("axis", [BATCH, HEADS, ROWS])
def test_chunks_are_views(axis: str, mask_shape: tuple[int, ...]) -> None:
    layouts = ("length before heads", "expanded heads", "sliced")
    sizes = {"batch": 4, "heads": 4, "kv_heads": 4, "seq_q": 4}
    case = Case(**sizes, layouts=layouts, mask_kind="bool", mask_shape=mask_shape)
    whole = build(case)[1]
    chunks = list(run_plan.split(Plan(axis, (2, 1, 1)), whole))
    assert len(chunks) == 3
    for chunk in chunks:
        for view, tensor in zip(chunk[:4], whole[:4]):
            assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            assert view.stride() == tensor.stride()


class Copies(TorchDispatchMode):
    """Counts the operations that copy a tensor, or fill one for a slice's gradient."""

    NAMES = ("cat", "clone", "copy_", "_to_copy", "slice_backward", "select_backward")

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("axis", [BATCH, HEADS, ROWS])
def test_one_join_and_no_other_copy(axis: str) -> None:
    case = Case(axis=axis, batch=3, heads=3, kv_heads=3, layouts=("length before heads",) * 3)
    arguments = build(case)[1]
    with Copies() as in_chunks:
        for chunk in run_plan.split(Plan(axis, (1, 1, 1)), arguments):
            attend(chunk)
    with Copies() as forward, case.guard() as guard:
        out = attend(arguments)
    assert guard.report.chunks == 3
    assert forward.counts - in_chunks.counts == {"cat": 1}
    with Copies() as backward:
        out.sum().backward()
    # One join for the gradient of each tensor that was split, and no zeros around a chunk's.
    assert backward.counts["cat"] == (1 if axis == ROWS else 3)
    assert backward.counts["slice_backward"] == backward.counts["select_backward"] == 0


@pytest.mark.parametrize("transposed", [False, True])
def test_without_gradients_only_one_chunk_is_held_beside_the_result(transposed: bool) -> None:
    shape = (5, 4, 6, 8)
    query = torch.randn(shape).transpose(1, 2) if transposed else torch.randn(shape)
    chunks: list[weakref.ref[torch.Tensor]] = []
    held = []

    def torch_call(*args: Any, **kwargs: Any) -> torch.Tensor:
        held.append(sum(chunk() is not None for chunk in chunks))
        chunk = torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)
        chunks.append(weakref.ref(chunk))
        return chunk

    plan = Plan(BATCH, (2, 2, 1), Plan(HEADS, (2, 2)) if not transposed else None)
    with torch.no_grad():
        result = run_plan.run(plan, torch_call, Arguments(query, query, query, None, {}))
    whole = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    torch.testing.assert_close(result, whole)
    assert steps(result) == steps(whole)
    assert max(held) == 0 < len(held)


@pytest.mark.parametrize("mask_shape", [None, (3, 1, 3), (3, 3)])
@pytest.mark.parametrize("axis", [HEADS, ROWS])
def test_three_dimensions(axis: str, mask_shape: Optional[tuple[int, ...]]) -> None:
    """torch 2.14 gives (heads, length, dim) to the fused kernels, earlier ones never."""
    mask = {} if mask_shape is None else {"mask_kind": "bool", "mask_shape": mask_shape}
    case = Case(axis=axis, batch=1, heads=3, kv_heads=3, **mask)
    query, key, value, attn_mask, options = build(case)[1]
    arguments = Arguments(query[0], key[0], value[0], attn_mask, options)
    whole = attend(arguments)
    with case.guard() as guard:
        split = attend(arguments)
    assert guard.report.split == FUSES_3D
    assert_close(split, whole, case.dtype)
    assert steps(split) == steps(whole)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_result_is_no_view(requires_grad: bool, transposed: bool) -> None:
    """It can be changed and detached in place, as the whole call's can."""
    shape = (5, 4, 6, 8)
    query = torch.randn(shape).transpose(1, 2) if transposed else torch.randn(shape)
    query.requires_grad_(requires_grad)
    with torch.no_grad(), Case(axis=BATCH).guard() as guard:
        unrecorded = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    unrecorded.add_(torch.ones(8, requires_grad=True))
    with guard:
        out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert guard.report.split == 2
    assert not is_view(out)
    out.detach_()


@pytest.mark.skipif(not HAS_GQA, reason="torch before 2.5 has no enable_gqa")
@pytest.mark.parametrize("mask_shape", [None, (2, 6, 5, 7), (6, 1, 7), (5, 7)])
def test_heads_of_one_group_are_split_exactly(mask_shape: tuple[int, ...] | None) -> None:
    def step(guard: contextlib.AbstractContextManager[object]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        shapes = ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
        tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
        mask = mask_shape and torch.randn(mask_shape, dtype=torch.float64, requires_grad=True)
        with guard:
            out = attend(Arguments(*tensors, mask, {"enable_gqa": True}))
        out.sin().sum().backward()
        wanting = [*tensors, mask] if mask_shape else tensors
        return [out.detach(), *[tensor.grad for tensor in wanting]]

    opened = SDPAGuard(limits=lowered(HEADS, 2), device_types=("cpu",))
    for split, whole in zip(step(opened), step(contextlib.nullcontext())):
        torch.testing.assert_close(split, whole)
    assert opened.report.as_dict()["sites"][0]["plan"]["sizes"] == [2, 1, 2, 1]


@pytest.mark.parametrize("copied", ["query", "key", "value"])
def test_a_copy_of_one_tensor_changes_nothing_but_its_strides(copied: str) -> None:
    def step(guard: contextlib.AbstractContextManager[object]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        leaves = [
            torch.randn(5, 2, 3, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)
        ]
        with guard:
            out = attend(Arguments(*[leaf.permute(1, 2, 0, 3) for leaf in leaves], None, {}))
        out.sin().sum().backward()
        return [out.detach(), *[leaf.grad for leaf in leaves]]

    def rows_apart(call: Any) -> int:
        return call.strides(copied).row

    limits = [
        dataclasses.replace(BY_ID["E4"], counted=rows_apart, bound=8, cures=(CONTIGUOUS,)),
        *lowered(BATCH, 1),
    ]
    opened = SDPAGuard(limits=limits, device_types=("cpu",))
    for split, whole in zip(step(opened), step(contextlib.nullcontext())):
        torch.testing.assert_close(split, whole)
        assert split.stride() == whole.stride()
    plan = opened.report.as_dict()["sites"][0]["plan"]
    assert (plan["copies"], plan["inner"]["axis"]) == ([copied], BATCH)


@pytest.mark.parametrize("tracing_mode", ["real", "fake"])
def test_a_copy_of_the_query_keeps_the_results_layout_in_a_graph(tracing_mode: str) -> None:
    def merged_heads(query: torch.Tensor) -> torch.Tensor:
        return attend(Arguments(query, query, query, None, {})).transpose(1, 2).view(4, 6, 64)

    query = torch.randn(4, 6, 8, 8).transpose(1, 2)
    limits = [
        dataclasses.replace(
            BY_ID["E4"], counted=lambda call: call.query_strides.row, bound=8, cures=(CONTIGUOUS,)
        )
    ]
    with SDPAGuard(limits=limits, device_types=("cpu",)):
        graph = make_fx(merged_heads, tracing_mode=tracing_mode)(query)
    torch.testing.assert_close(graph(query), merged_heads(query))


def test_rows_that_were_right_stay_right_where_a_chunk_ends_in_one_row() -> None:
    """2 x 35009 rows would each end in a block of one row, which reads the wrong mask (E12)."""
    query = torch.empty(1, 8, 70018, 64, dtype=torch.bfloat16, device="meta")
    key = torch.empty(1, 1, 70018, 64, dtype=torch.bfloat16, device="meta").expand(1, 8, 70018, 64)
    mask = torch.empty(70018, 70018, dtype=torch.bool, device="meta")
    with torch.no_grad(), SDPAGuard(torch_version="2.9.0") as guard:
        attend(Arguments(query, key, key, mask, {}))
    plan = guard.report.as_dict()["sites"][0]["plan"]
    assert plan["axis"] == ROWS
    assert all(rows % 64 != 1 for rows in plan["sizes"])


def test_no_chunk_meets_a_limit_that_the_whole_call_does_not() -> None:
    """E12 counts one query row on a view of one head: three rows are not cut into two and one."""
    query, key = torch.randn(1, 65, 3, 4), torch.randn(1, 1, 3, 4).expand(1, 65, 3, 4)
    with SDPAGuard(limits=(*lowered(ROWS, 2), BY_ID["E12"]), device_types=("cpu",)) as guard:
        attend(Arguments(query, key, key, None, {}))
    assert guard.report.as_dict()["sites"][0]["plan"]["axis"] == CONTIGUOUS


def test_forward_mode_derivatives_pass_through_a_split() -> None:
    query, tangent = torch.randn(2, 3, 2, 4, 8, dtype=torch.float64)

    def derivative() -> torch.Tensor:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(query, tangent)
            # Next to no dropout keeps the CPU from its fused kernel, which has no such derivative.
            out = torch.nn.functional.scaled_dot_product_attention(dual, dual, dual, None, 1e-12)
            return forward_ad.unpack_dual(out).tangent

    expected = derivative()
    with Case(axis=BATCH).guard() as guard:
        torch.testing.assert_close(derivative(), expected)
    assert guard.report.split == 1
