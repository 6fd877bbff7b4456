"""What each part of the scoped guard costs on an attention call that is not split."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import LIMITS
from sdpa_guard.guarding import door_scoped, open_scopes
from sdpa_guard.guarding.call_key import call_key
from sdpa_guard.guarding.dispatcher_hook import torch_kernel
from sdpa_guard.guarding.guard_memory import Memory
from sdpa_guard.guarding.options import make_options

from .timing import Result, Variant, added, time_calls

CALLS, TURNS = 1000, 51


def parts() -> list[Result]:
    """The parts, in the order in which a call meets them."""
    query = torch.ones(1, 1, 8, 8)
    arguments = (query, query, query)
    seen = call_key(arguments, {})
    known = {seen}
    memory = Memory(make_options("split", LIMITS, None, ("cpu",)))

    @contextlib.contextmanager
    def in_force() -> Iterator[None]:
        open_scopes.enter(memory, contextlib.nullcontext())
        try:
            yield
        finally:
            open_scopes.leave(memory)

    def nothing() -> None: ...

    calls: dict[str, Callable[[], object]] = {
        "is torch.compile tracing": torch.compiler.is_compiling,
        "the guard in force on this thread": open_scopes.in_force,
        "are there other modes": door_scoped.torch_is_next,
        "the key of the call": lambda: call_key(arguments, {}),
        "and whether it is known": lambda: seen in known,
        "count the call": memory.ledger.calls.add,
    }
    variants = {name: Variant(call, in_force) for name, call in calls.items()}
    variants["nothing"] = Variant(nothing)
    taken = time_calls(variants, CALLS, TURNS)
    results = [Result("parts", name, "", added(taken, name, "nothing"), "us") for name in calls]
    kernels = {
        "by name": Variant(lambda: scaled_dot_product_attention(query, query, query)),
        "past our kernel": Variant(lambda: torch_kernel(query, query, query)),
    }
    taken = time_calls(kernels, CALLS, TURNS)
    figure = added(taken, "past our kernel", "by name")
    return [*results, Result("parts", "torch's kernel, past ours", "by its name", figure, "us")]
