"""What a split costs against the whole call."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import timeit
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import LIMITS, Limit, SDPAGuard, check
from sdpa_guard.limits.call import Call
from sdpa_guard.limits.find_plan import cure
from sdpa_guard.limits.findings import exceeded
from sdpa_guard.limits.releases import RUNNING_TORCH

from .timing import Result, Variant, ratio, spread, time_calls

Attend = Callable[..., torch.Tensor]
Step = Callable[[], object]

BATCH, HEADS, LENGTH, DIM = 256, 4, 64, 32
TURNS = 31
GRID = next(limit for limit in LIMITS if limit.id == "F2b")


def limits(bound: int) -> list[Limit]:
    """One limit that lets no more batch entries than that into a call."""
    return [dataclasses.replace(GRID, bound=bound)]


def scope(batch: int, chunks: int) -> Callable[[], AbstractContextManager[object]]:
    return lambda: SDPAGuard(limits=limits(batch // chunks), device_types=("cpu",))


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """As people write it: slices, and a concatenation."""
    parts = []
    for start in range(0, query.shape[0], size):
        part = slice(start, start + size)
        parts.append(scaled_dot_product_attention(query[part], key[part], value[part]))
    return torch.cat(parts)


def inputs(batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = (
        torch.randn(batch, HEADS, LENGTH, DIM, requires_grad=True) for _ in range(3)
    )
    return query, key, value


def training(attend: Attend, whole: Sequence[torch.Tensor], grad: torch.Tensor) -> Step:
    """Forward and backward."""

    def step() -> None:
        for tensor in whole:
            tensor.grad = None
        attend(*whole).backward(grad)

    return step


def split() -> list[Result]:
    """Forward and backward in chunks."""
    return [_split_into(chunks) for chunks in (2, 4, 16, 64, 256)]


def _split_into(chunks: int) -> Result:
    whole, grad = inputs(), torch.randn(BATCH, HEADS, LENGTH, DIM)
    pieces = zip(*(tensor.detach().split(BATCH // chunks) for tensor in (*whole, grad)))
    steps = []
    for *piece, piece_grad in pieces:
        leaves = [tensor.requires_grad_() for tensor in piece]
        steps.append(training(scaled_dot_product_attention, leaves, piece_grad))

    def chunks_alone() -> None:
        for one in steps:
            one()

    step = training(scaled_dot_product_attention, whole, grad)
    variants = {
        "whole": Variant(step),
        "split": Variant(step, scope(BATCH, chunks)),
        "chunks alone": Variant(chunks_alone),
    }
    taken = time_calls(variants, 1, TURNS)
    return Result(
        "split",
        f"{chunks} chunks",
        "the whole call",
        ratio(taken, "split", "whole"),
        "x",
        1.05 if chunks <= 64 else None,
        floor=ratio(taken, "chunks alone", "whole").median,
    )


def hand_written() -> list[Result]:
    """The same beside what people write."""
    chunks = 64
    whole, grad = inputs(), torch.randn(BATCH, HEADS, LENGTH, DIM)
    hand = functools.partial(by_hand, size=BATCH // chunks)
    variants = {
        "split": Variant(training(scaled_dot_product_attention, whole, grad), scope(BATCH, chunks)),
        "by hand": Variant(training(hand, whole, grad)),
    }
    taken = time_calls(variants, 1, TURNS)
    figure = ratio(taken, "by hand", "split")
    what = f"slices and cat, {chunks} chunks"
    return [Result("by-hand", what, "the guard's split", figure, "x", 1.5, at_least=True)]


def plan() -> list[Result]:
    """Planning."""
    results = []
    for batch in (10**4, 10**6):
        call, bound = check(batch, HEADS, LENGTH, DIM).call, limits(batch // 1000)
        # A chunk of this length meets C2 where the whole call does not: no split cures that.
        others = [limit for limit in LIMITS if limit.id != GRID.id and limit.cures]
        everything = [*bound, *others]
        once = functools.partial(cure, call, everything, (RUNNING_TORCH,))
        found = once()
        assert found is not None
        times = timeit.repeat(once, number=20, repeat=51)
        figure = spread([1e6 * seconds / 20 for seconds in times])
        what = f"{batch} batch entries into {len(found)} chunks"
        results.append(Result("plan", what, "", figure, "us", 50))
    return results


def chunks_used() -> list[Result]:
    """The plan's chunks against the fewest that fit, tried one by one."""
    draw = random.Random(0)
    wrong, planned, shapes = 0, 0, 500
    for _ in range(shapes):
        batch, heads, rows = (draw.randint(1, most) for most in (40, 16, 40))
        call = check(batch, heads, rows, DIM).call
        judged = [
            dataclasses.replace(limit, bound=draw.randint(1, max(1, limit.counted(call))))
            for limit in LIMITS
            if limit.id in ("F1", "F2b", "F2h")
        ]
        found = cure(call, judged, (RUNNING_TORCH,))
        planned += found is not None
        wrong += (1 if found is None else len(found)) != _fewest(call, judged)
    what = f"plans that are not the fewest, of {planned} for {shapes} shapes"
    return [Result("chunks", what, "brute force", spread([wrong]), "", 0)]


def _fewest(call: Call, judged: list[Limit]) -> int:
    """Along the batch if that is enough, else along all axes; 1 where no split fits."""

    def fits(*chunks: int) -> bool:
        batch, heads, rows = (
            -(-units // parts) for units, parts in zip((call.batch, call.heads, call.seq_q), chunks)
        )
        chunk = dataclasses.replace(call, batch=batch, heads=heads, kv_heads=heads, seq_q=rows)
        return not exceeded(chunk, judged, (RUNNING_TORCH,))

    for parts in range(1, call.batch + 1):
        if fits(parts, 1, 1):
            return parts
    return min(
        (
            math.prod(chunks)
            for chunks in itertools.product(
                *(range(1, units + 1) for units in (call.batch, call.heads, call.seq_q))
            )
            if fits(*chunks)
        ),
        default=1,
    )
