"""What the guard leaves alone: it reaches torch as it came, and fails as torch fails."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator

import pytest
import torch
from helpers.inside import (
    RUNNING_TORCH,
    Release,
)
from torch.nn.functional import scaled_dot_product_attention

import sdpa_guard
from sdpa_guard import LIMITS, Report, SDPAGuard
from sdpa_guard.testing import record_calls

#: Nothing that the guard judges would be left alone with these.
LOWEST = tuple(dataclasses.replace(limit, bound=1) for limit in LIMITS)


@contextlib.contextmanager
def scoped() -> Iterator[Report]:
    with SDPAGuard(limits=LOWEST, device_types=("cpu", "meta")) as opened:
        yield opened.report


@contextlib.contextmanager
def process_wide() -> Iterator[Report]:
    sdpa_guard.enable(limits=LOWEST, device_types=("cpu", "meta"))
    try:
        yield sdpa_guard.report()
    finally:
        sdpa_guard.disable()


under_both_doors = pytest.mark.parametrize("door", [scoped, process_wide])


def randn(*shape: int, **options: object) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **options)


class Doubled(torch.Tensor):
    """Somebody's own tensor type."""


PLAIN = randn(2, 2, 4, 8)
LEFT_ALONE = {
    "5-D": (randn(2, 2, 2, 4, 8),) * 3,
    "2-D": (randn(4, 8),) * 3,
    "a batch of zero": (randn(0, 2, 4, 8),) * 3,
    "no query rows": (randn(2, 2, 0, 8), PLAIN, PLAIN),
    "a key/value batch that broadcasts": (PLAIN, randn(1, 2, 4, 8), randn(1, 2, 4, 8)),
    "a key and value of fewer dimensions": (PLAIN, randn(2, 4, 8), randn(2, 4, 8)),
    "a tensor subclass": (PLAIN.as_subclass(Doubled), PLAIN, PLAIN),
    "a subclass as mask": (PLAIN, PLAIN, PLAIN, randn(4, 4).as_subclass(Doubled)),
}
if Release(2, 14) > RUNNING_TORCH:
    LEFT_ALONE["3-D"] = (randn(2, 4, 8),) * 3
    LEFT_ALONE["one key/value head without enable_gqa"] = (
        PLAIN,
        randn(2, 1, 4, 8),
        randn(2, 1, 4, 8),
    )


@under_both_doors
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_it_passes_through_untouched(name, door):
    arguments = LEFT_ALONE[name]
    expected = scaled_dot_product_attention(*arguments)
    with door() as report:
        actual = scaled_dot_product_attention(*arguments)
    assert type(actual) is type(expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert actual.stride() == expected.stride()
    assert report.calls == 0


@under_both_doors
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_pass_through(layout, door):
    rows = [randn(3, 2, 8), randn(5, 2, 8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
        nested = torch.nested.nested_tensor(rows, layout=layout).transpose(1, 2)
        nested = nested if layout is torch.jagged else nested.contiguous()
        expected = scaled_dot_product_attention(nested, nested, nested)
        with door() as report:
            actual = scaled_dot_product_attention(nested, nested, nested)
    assert actual.is_nested
    for one, other in zip(actual.transpose(1, 2).unbind(), expected.transpose(1, 2).unbind()):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert report.split == 0


@under_both_doors
@pytest.mark.filterwarnings("ignore::sdpa_guard.SDPAGuardWarning")
def test_a_causal_bias_works_as_without_a_guard(door):
    """The guard sees the mask that torch makes of it."""
    from torch.nn.attention.bias import causal_lower_right

    arguments = (PLAIN, randn(2, 2, 6, 8), randn(2, 2, 6, 8), causal_lower_right(4, 6))
    expected = scaled_dot_product_attention(*arguments)
    with door() as report:
        actual = scaled_dot_product_attention(*arguments)
    torch.testing.assert_close(actual, expected)
    assert report.calls == 1


@under_both_doors
def test_flex_attention_passes_through(door):
    flex = pytest.importorskip("torch.nn.attention.flex_attention", reason="torch from 2.5 on")
    expected = flex.flex_attention(PLAIN, PLAIN, PLAIN)
    with door() as report:
        actual = flex.flex_attention(PLAIN, PLAIN, PLAIN)
    torch.testing.assert_close(actual, expected)
    assert report.calls == 0


@under_both_doors
def test_symbolic_tracing_leaves_one_node(door):
    class Attention(torch.nn.Module):
        def forward(self, query):
            return scaled_dot_product_attention(query, query, query)

    with door():
        graph = torch.fx.symbolic_trace(Attention()).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "output"]


def test_tensors_on_other_devices_are_not_judged():
    with SDPAGuard(limits=LOWEST) as opened:
        scaled_dot_product_attention(PLAIN, PLAIN, PLAIN)
    assert opened.report.calls == 0


def test_an_unsplit_call_reaches_torch_with_the_very_arguments():
    seen = []

    class Below(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is scaled_dot_product_attention:
                seen.append((args, kwargs))
            return func(*args, **(kwargs or {}))

    mask = randn(4, 4)
    with Below(), SDPAGuard(device_types=("cpu",)):
        scaled_dot_product_attention(PLAIN, PLAIN, value=PLAIN, attn_mask=mask, scale=0.5)
    ((args, kwargs),) = seen
    assert args[0] is args[1] is PLAIN
    assert kwargs["value"] is PLAIN
    assert kwargs["attn_mask"] is mask
    assert set(kwargs) == {"value", "attn_mask", "scale"}


#: On the CPU such a mask leads to the math path, which checks more than the fused one.
WANTS_GRAD = randn(4, 4, requires_grad=True)
WRONG = {
    "nothing": ((), {}),
    "too few": ((PLAIN, PLAIN), {}),
    "scale by position": ((PLAIN, PLAIN, PLAIN, None, 0.0, False, 2.0), {}),
    "an unknown keyword": ((PLAIN, PLAIN, PLAIN), {"softcap": 1.0}),
    "twice": ((PLAIN, PLAIN, PLAIN), {"query": PLAIN}),
    "no tensor": ((PLAIN, PLAIN, [1.0]), {}),
    "None": ((None, PLAIN, PLAIN), {}),
    "head dims differ": ((PLAIN, randn(2, 2, 4, 6), PLAIN), {}),
    "lengths differ": ((PLAIN, PLAIN, randn(2, 2, 5, 8), WANTS_GRAD), {}),
    "dtypes differ": ((PLAIN, PLAIN.double(), PLAIN), {}),
    "heads differ": ((PLAIN, randn(2, 3, 4, 8), randn(2, 3, 4, 8)), {}),
    "batches differ": ((PLAIN, randn(3, 2, 4, 8), randn(3, 2, 4, 8)), {}),
    "devices differ": ((PLAIN, PLAIN.to("meta"), PLAIN), {}),
    "a mask that does not broadcast": ((PLAIN, PLAIN, PLAIN, randn(3, 4)), {}),
    "a mask of another dtype": ((PLAIN, PLAIN, PLAIN, randn(4, 4).double()), {}),
    "an integer mask": ((PLAIN, PLAIN, PLAIN, torch.ones(4, 4, dtype=torch.int)), {}),
    "mask and is_causal": ((PLAIN, PLAIN, PLAIN, WANTS_GRAD), {"is_causal": True}),
    "dropout over one": ((PLAIN, PLAIN, PLAIN), {"dropout_p": 1.5}),
    "dropout in words": ((PLAIN, PLAIN, PLAIN), {"dropout_p": "half"}),
    "integers": ((torch.ones(2, 2, 4, 8, dtype=torch.int),) * 3, {}),
}


@under_both_doors
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_what_torch_raises(name, door):
    args, kwargs = WRONG[name]
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever torch raises
        scaled_dot_product_attention(*args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with door(), pytest.raises(Exception) as actual:  # noqa: PT011
            scaled_dot_product_attention(*args, **kwargs)
    assert actual.type is expected.type
    assert str(actual.value) == str(expected.value)


@pytest.mark.skipif(
    Release(2, 14) > RUNNING_TORCH, reason="torch before 2.14 never fuses a 3-D call"
)
@pytest.mark.parametrize("mask", [None, randn(4, 4), randn(6, 4, 4)], ids=["none", "2-D", "3-D"])
def test_a_3d_call_is_heads(mask):
    heads = [dataclasses.replace(limit, bound=4) for limit in LIMITS if limit.id == "E4"]
    query = randn(6, 4, 8, requires_grad=True)
    expected = scaled_dot_product_attention(query, query, query, mask)
    with record_calls() as calls, SDPAGuard(limits=heads, device_types=("cpu",)):
        actual = scaled_dot_product_attention(query, query, query, mask)
    assert [call.query for call in calls] == [(3, 4, 8), (3, 4, 8)]
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()
