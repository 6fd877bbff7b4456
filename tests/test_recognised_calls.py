"""Calls that come again: each is judged as if it were the first."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, Callable

import pytest
import torch
from helpers.autocast import cuda_autocast
from helpers.lowered import BATCH, BY_ID, ROWS, lowered
from helpers.torch_inside import NO_TORCH_FUNCTION, fake_tensors, wrapper
from torch.nn.functional import scaled_dot_product_attention

import sdpa_guard
from sdpa_guard import LIMITS, Report, SDPAGuard, SDPAGuardWarning
from sdpa_guard.testing import record_calls

DEVICE_TYPES = ("cpu", "meta")
Door = Callable[..., contextlib.AbstractContextManager[Report]]


@contextlib.contextmanager
def scoped(**settings: Any) -> Iterator[Report]:
    with SDPAGuard(device_types=DEVICE_TYPES, **settings) as opened:
        yield opened.report


@contextlib.contextmanager
def process_wide(**settings: Any) -> Iterator[Report]:
    sdpa_guard.enable(device_types=DEVICE_TYPES, **settings)
    try:
        yield sdpa_guard.report()
    finally:
        sdpa_guard.disable()


under_both_doors = pytest.mark.parametrize("door", [scoped, process_wide])


def tensor(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(shape, **options)


Q = tensor(4, 2, 8, 16)
META = Q.to("meta")
MASK = tensor(8, 8)


def without_grad(query: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return scaled_dot_product_attention(query, Q, Q)


def under_autocast(query: torch.Tensor) -> torch.Tensor:
    with cuda_autocast():
        return scaled_dot_product_attention(query, query, query)


def rows_apart(length: int) -> torch.Tensor:
    return tensor(length, 4, 2, 16).permute(1, 2, 0, 3)


META_BF16 = META.bfloat16()


#: A limit that is lowered to a bound; a call inside of it, and one over it that looks like it.
def one_head(requires_grad: bool) -> torch.Tensor:
    batch, _, length, dim = Q.shape
    return torch.ones(batch, 1, length, dim, requires_grad=requires_grad).expand_as(Q)


LOOKALIKES: dict[str, tuple[str, int, Callable[[], object], Callable[[], object]]] = {
    "value's shape": (  # flash refuses a value that is narrower than the query
        "F2b",
        3,
        lambda: scaled_dot_product_attention(META_BF16, META_BF16, META_BF16[..., :8]),
        lambda: scaled_dot_product_attention(META_BF16, META_BF16, META_BF16),
    ),
    "wants a gradient": (
        "F1",
        4096,
        lambda: scaled_dot_product_attention(Q, Q, Q),
        lambda: scaled_dot_product_attention(Q.clone().requires_grad_(), Q, Q),
    ),
    "grad mode": (
        "F1",
        4096,
        lambda: without_grad(Q.clone().requires_grad_()),
        lambda: scaled_dot_product_attention(Q.clone().requires_grad_(), Q, Q),
    ),
    "dropout": (
        "E2",
        2,
        lambda: scaled_dot_product_attention(Q, Q, Q, None, 0.0),
        lambda: scaled_dot_product_attention(Q, Q, Q, None, 0.5),
    ),
    "mask": (
        "E6",
        50,
        lambda: scaled_dot_product_attention(Q, Q, Q, MASK[:1]),
        lambda: scaled_dot_product_attention(Q, Q, Q, MASK),
    ),
    "a mask that wants a gradient": (
        "E3",
        2,
        lambda: scaled_dot_product_attention(Q, Q, Q, MASK),
        lambda: scaled_dot_product_attention(Q, Q, Q, MASK.clone().requires_grad_()),
    ),
    "which tensor wants a gradient": (
        "E3b",
        2,
        lambda: scaled_dot_product_attention(Q, one_head(False), one_head(False)),
        lambda: scaled_dot_product_attention(Q, one_head(True), one_head(False)),
    ),
    "strides of the key": (
        "E8",
        128,
        lambda: scaled_dot_product_attention(Q, Q, Q),
        lambda: scaled_dot_product_attention(Q, rows_apart(8), Q),
    ),
    "strides of the value": (
        "E8",
        128,
        lambda: scaled_dot_product_attention(Q, Q, Q),
        lambda: scaled_dot_product_attention(Q, Q, rows_apart(8)),
    ),
    "dtype": (
        "F2b",
        2,
        lambda: scaled_dot_product_attention(META, META, META),
        lambda: scaled_dot_product_attention(META.half(), META.half(), META.half()),
    ),
    "autocast": (
        "F2b",
        2,
        lambda: scaled_dot_product_attention(META, META, META),
        lambda: under_autocast(META),
    ),
    "device": (
        "F2b",
        2,
        lambda: scaled_dot_product_attention(META, META, META),
        lambda: scaled_dot_product_attention(Q, Q, Q),
    ),
}


@under_both_doors
@pytest.mark.parametrize("fact", LOOKALIKES)
def test_a_call_over_a_limit_is_split_however_alike_one_inside_was(fact, door: Door):
    limit_id, bound, inside, over = LOOKALIKES[fact]
    limit = dataclasses.replace(BY_ID[limit_id], bound=bound)
    with door(limits=[limit]) as report:
        inside()
        inside()
        assert (report.calls, report.split) == (2, 0)
        over()
        inside()
        over()
    assert (report.calls, report.split) == (5, 2)
    assert report.as_dict()["ratios"][limit_id] > 1


def test_a_call_under_vmap_is_split_though_the_same_alone_was_inside():
    lanes = tensor(3, *Q.shape)
    with SDPAGuard(limits=lowered(BATCH, 4), device_types=("cpu",)) as guard:
        scaled_dot_product_attention(Q, Q, Q)
        torch.vmap(lambda query: scaled_dot_product_attention(query, Q, Q))(lanes)
    assert (guard.report.calls, guard.report.split) == (2, 1)


def test_more_lanes_of_vmap_than_a_call_may_hold_are_told_the_cure():
    lanes = tensor(3, *Q.shape)
    expected = torch.vmap(lambda query: scaled_dot_product_attention(query, Q, Q))(lanes)
    said = pytest.warns(SDPAGuardWarning, match="runs 3 calls as one: give it a chunk_size")
    with said, SDPAGuard(limits=lowered(BATCH, 2), device_types=("cpu",)) as guard:
        actual = torch.vmap(lambda query: scaled_dot_product_attention(query, Q, Q))(lanes)
    assert (guard.report.split, guard.report.unsplittable) == (0, 1)
    torch.testing.assert_close(actual, expected)


@under_both_doors
def test_a_call_that_is_left_as_it_is_is_over_its_limit_each_time(door: Door):
    with door(policy="warn", limits=lowered(BATCH, 1)) as report, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            scaled_dot_product_attention(Q, Q, Q)
    assert [site["calls"] for site in report.as_dict()["sites"]] == [3]
    assert not report.fits


@under_both_doors
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (lambda: ((Q, Q, Q), {"is_causal": False}), lambda: ((Q, Q, Q), {"is_causal": 0})),
        (lambda: ((Q, Q, Q), {}), lambda: ((Q, Q.double(), Q), {})),
        (lambda: ((Q, Q, Q), {}), lambda: ((Q, Q.to("meta"), Q), {})),
        (lambda: ((Q, Q, Q), {}), lambda: ((Q, Q, Q), {"scal": 1.0})),
        (lambda: ((Q, Q, Q), {"dropout_p": 0.5}), lambda: ((Q, Q, Q), {"dropout_p": 1.5})),
    ],
    ids=["not a bool", "dtypes", "devices", "a misspelt option", "a probability over one"],
)
def test_a_wrong_call_fails_as_torch_fails_after_a_right_one(door: Door, right, wrong):
    def fault(arguments: Any) -> str:
        args, kwargs = arguments
        with pytest.raises(Exception) as raised:  # noqa: PT011
            scaled_dot_product_attention(*args, **kwargs)
        return f"{raised.type.__name__}: {raised.value}"

    expected = fault(wrong())
    with door():
        for _ in range(2):
            args, kwargs = right()
            scaled_dot_product_attention(*args, **kwargs)
        assert [fault(wrong()), fault(wrong())] == [expected, expected]


@under_both_doors
def test_calls_that_come_again_are_recorded_and_counted(door: Door):
    with record_calls() as calls, door(limits=LIMITS) as report:
        for _ in range(3):
            scaled_dot_product_attention(Q, Q, Q, attn_mask=MASK, scale=0.5)
    assert len(calls) == report.calls == 3
    assert len({str(call) for call in calls}) == 1


@under_both_doors
def test_each_shape_of_a_long_run_is_judged(door: Door):
    with door(limits=lowered(ROWS, 30)) as report:
        for _ in range(2):
            for length in range(1, 40):
                scaled_dot_product_attention(Q[:1, :, :1].expand(1, 2, length, 16), Q[:1], Q[:1])
    assert report.calls == 78
    assert report.split == 18


class Named(torch.Tensor):
    """A tensor type that writes down the operators it receives."""

    __torch_function__ = NO_TORCH_FUNCTION
    received: list[str]

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return wrapper(cls, inner)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.received.append(str(func))
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


@under_both_doors
def test_a_type_is_none_that_was_seen_before_whichever_tensor_has_it(door: Door):
    """In inference mode torch hands such a type the whole call."""
    key = Named(Q)

    def received() -> list[str]:
        Named.received = []
        with torch.inference_mode():
            scaled_dot_product_attention(Q, key, key)
        return Named.received

    alone = received()
    with door():
        with torch.inference_mode():
            scaled_dot_product_attention(Q, Q, Q)
        assert received() == alone


@under_both_doors
def test_the_profiler_sees_calls_that_come_again(door: Door):
    with door():
        scaled_dot_product_attention(Q, Q, Q)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(3):
                scaled_dot_product_attention(Q, Q, Q)
    name = "aten::scaled_dot_product_attention"
    assert [event.count for event in profile.key_averages() if event.key == name] == [3]


@pytest.mark.parametrize("scale", [10**400, torch.tensor(1j)], ids=["huge", "complex"])
@under_both_doors
def test_a_call_that_torch_refuses_is_refused_alike_each_time(door: Door, scale):
    def refusal() -> tuple[type, str]:
        with pytest.raises((OverflowError, RuntimeError, TypeError)) as refused:
            scaled_dot_product_attention(Q, Q, Q, scale=scale)
        return refused.type, str(refused.value)

    with door():
        first = refusal()
        assert refusal() == first


@under_both_doors
def test_code_that_is_compiled_is_not_counted_for_a_rehearsal_before_it(door: Door):
    with door() as report:
        with fake_tensors():
            for _ in range(2):
                query = torch.empty(Q.shape)
                scaled_dot_product_attention(query, query, query)
        assert report.calls == 2
        compiled = torch.compile(
            lambda query: scaled_dot_product_attention(query, query, query) + 1,
            backend="aot_eager",
            fullgraph=True,
        )
        compiled(Q)
    assert report.calls == 2
