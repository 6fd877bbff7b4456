"""What the guard adds to a torch call, and to an attention call that is not split."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Callable

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

import sdpa_guard
from sdpa_guard import SDPAGuard
from sdpa_guard.torch_private import COMPOSITE, call_at, destroy_library

from .timing import Result, Variant, added, ratio, time_calls

CALLS, TURNS = 300, 101


class Nothing(TorchFunctionMode):
    """A mode that hands every call on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class StraightOn(TorchFunctionMode):
    """A mode that hands attention to torch's kernel, past all other Python code."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call_at(COMPOSITE, *args, **(kwargs or {}))


def scoped() -> AbstractContextManager[object]:
    return SDPAGuard(device_types=("cpu", "cuda"))


@contextlib.contextmanager
def process_wide() -> Iterator[None]:
    sdpa_guard.enable(device_types=("cpu", "cuda"))
    try:
        yield
    finally:
        sdpa_guard.disable()


@contextlib.contextmanager
def python_kernel() -> Iterator[None]:
    """A kernel in Python, in the place of the process-wide guard's, that hands every call on."""
    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCPU", "AutogradCUDA"):
        library.impl(
            "scaled_dot_product_attention",
            lambda *args, **kwargs: call_at(COMPOSITE, *args, **kwargs),
            key,
        )
    try:
        yield
    finally:
        destroy_library(library)


def other_calls() -> list[Result]:
    """Calls that are no attention."""
    small, square = torch.ones(8), torch.ones(8, 8)
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: small + small,
        "matmul 8x8": lambda: square @ square,
        "view": lambda: square.view(64),
    }
    results = []
    for name, call in calls.items():
        variants = {
            "unguarded": Variant(call),
            "no-op mode": Variant(call, Nothing),
            "scoped": Variant(call, scoped),
            "process-wide": Variant(call, process_wide),
        }
        taken = time_calls(variants, CALLS, TURNS)
        for what, against, reach in (
            ("scoped", "no-op mode", 1.03),
            ("process-wide", "unguarded", 1.03),
        ):
            figure = ratio(taken, what, against)
            results.append(Result("other-call", f"{name}, {what}", against, figure, "x", reach))
    return results


def unsplit_call(device: str = "cpu") -> list[Result]:
    """An attention call inside every bound, so small that its own work is next to nothing."""
    query = torch.ones(1, 1, 8, 8, device=device)

    def call() -> object:
        return scaled_dot_product_attention(query, query, query)

    variants = {
        "unguarded": Variant(call),
        "no-op mode": Variant(call, Nothing),
        "straight on": Variant(call, StraightOn),
        "Python kernel": Variant(call, python_kernel),
        "scoped": Variant(call, scoped),
        "process-wide": Variant(call, process_wide),
    }
    taken = time_calls(variants, CALLS, TURNS)
    results = []
    for what, against, reach, floor in (
        ("scoped", "no-op mode", 3, "straight on"),
        ("process-wide", "unguarded", 8, "Python kernel"),
    ):
        least = added(taken, floor, against).median
        figure = added(taken, what, against)
        results.append(Result("unsplit-call", what, against, figure, "us", reach, floor=least))
    return results
