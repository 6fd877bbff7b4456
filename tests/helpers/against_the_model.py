"""The guard's decisions on random calls, held against the model of the kernels.

``python -m helpers.against_the_model --calls 100000`` from the folder ``tests``.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import random
from collections.abc import Iterator
from typing import NamedTuple, Optional

import torch

from helpers.drawn_calls import Drawn, draw
from helpers.inside import (
    Answers,
    Arguments,
    Call,
    Decision,
    Plan,
    Release,
    bind,
    decide,
    make_options,
    read,
    run_plan,
    takes,
)
from helpers.kernel_model import Launch, Line, Mask, Strides, faults
from sdpa_guard import LIMITS, Limit

#: What the guard can only report: no split and no copy cures it.
REPORTED = {limit.id for limit in LIMITS if not limit.cures}
OPTIONS = make_options("split", LIMITS, None, ("meta",))
BACKENDS = (("flash",), ("efficient",), ("flash", "efficient"))


class Judged(NamedTuple):
    """One call, what the guard makes of it, and what the model says."""

    words: str
    #: "agrees", or what is wrong: "missed", "unsafe chunk", "needless" (within a
    #: tile of the bound) or "far".
    outcome: str
    detail: str = ""


def judge(dice: random.Random) -> Optional[Judged]:
    """One random call; None where no backend of the draw takes it."""
    line = dice.choice(list(Line))
    release = Release(*map(int, dice.choice(line.minors).split(".")))
    backends = dice.choice(BACKENDS)
    drawn = draw(dice, backends[0])
    arguments = _arguments(drawn)
    with torch.set_grad_enabled(drawn.grad_mode):
        call = read(arguments, ("meta",))
        assert call is not None, drawn.words
        if not any(takes(backend, call, release) for backend in backends):
            return None
        decision = decide(OPTIONS, call, Answers((release,), frozenset(backends)))
        words = f"torch {release} {'+'.join(backends)} {drawn.words}"
        wrong = _faults(arguments, call, backends, release, line)
        if decision.action == "leave":
            if wrong:
                return Judged(words, "missed", "; ".join(sorted(wrong)))
            return Judged(words, "agrees")
        if decision.action == "split":
            already = {f.limit.id for f in decision.over} & REPORTED
            for chunk in _distinct(decision.plan, arguments):
                part = read(chunk, ("meta",))
                assert part is not None
                left = _faults(chunk, part, backends, release, line) - already
                if left:
                    detail = f"{decision.plan}: {_shape(part)}: {'; '.join(sorted(left))}"
                    return Judged(words, "unsafe chunk", detail)
        if not wrong:
            over = ", ".join(f"{f.limit.id} {f.counted}/{f.bound}" for f in decision.over)
            near = _is_near(arguments, decision, release, line)
            return Judged(words, "needless" if near else "far", over)
    return Judged(words, f"agrees, {decision.action}")


def _is_near(arguments: Arguments, decision: Decision, release: Release, line: Line) -> bool:
    """Whether the limit's count is within one tile, or one entry, of its bound."""
    call = read(arguments, ("meta",))
    assert call is not None
    return all(_smaller_is_inside(finding.limit, call) for finding in decision.over)


def _smaller_is_inside(limit: Limit, call: Call) -> bool:
    smaller = [
        call.take(axis, max(1, call.length(axis) - step))
        for axis, step in (("batch", 1), ("heads", call.group), ("rows", 128))
    ]
    smaller.append(dataclasses.replace(call, seq_k=max(1, call.seq_k - 256)))
    # Head dims are padded in steps of up to 64.
    smaller.append(dataclasses.replace(call, head_dim=max(1, call.head_dim - 64)))
    return any(limit.counted(part) <= limit.bound for part in smaller)


def _arguments(drawn: Drawn) -> Arguments:
    options = {"dropout_p": drawn.dropout_p, "is_causal": drawn.is_causal}
    if drawn.query.shape[1] != drawn.key.shape[1]:
        options["enable_gqa"] = True
    return bind(drawn.query, drawn.key, drawn.value, drawn.mask, **options)


def _faults(
    arguments: Arguments, call: Call, backends: tuple[str, ...], release: Release, line: Line
) -> set[str]:
    """The rules of the kernels that the call breaks on any backend that takes it."""
    launch = launch_of(arguments)
    return {
        fault.rule
        for backend in backends
        if takes(backend, call, release)
        for fault in faults(launch, backend, line)
    }


def launch_of(arguments: Arguments) -> Launch:
    """The call as the kernels are given it."""
    query, key, value, mask, options = arguments
    batch, heads, seq_q, head_dim = query.shape
    kv_heads, seq_k = key.shape[1:3]
    return Launch(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        value_dim=value.shape[-1],
        query=Strides(*query.stride()[:3]),
        key=Strides(*key.stride()[:3]),
        value=Strides(*value.stride()[:3]),
        itemsize=query.itemsize,
        mask=None
        if mask is None
        else Mask(tuple(mask.shape), mask.stride(), mask.dtype is torch.bool, mask.requires_grad),
        dropout=options.get("dropout_p", 0.0) > 0,
        is_causal=options.get("is_causal", False),
        query_requires_grad=query.requires_grad,
        key_requires_grad=key.requires_grad,
        value_requires_grad=value.requires_grad,
        grad_mode=torch.is_grad_enabled(),
    )


def _distinct(plan: Optional[Plan], arguments: Arguments) -> Iterator[Arguments]:
    """Chunks as torch gets them: of each level the first of each size, and the last."""
    if plan is None:
        yield arguments
    elif plan.axis == "contiguous":
        yield from _distinct(plan.inner, run_plan.copied(plan, arguments))
    else:
        sizes = plan.sizes
        wanted = {sizes.index(size) for size in set(sizes)} | {len(sizes) - 1}
        for number, chunk in enumerate(run_plan.split(plan, arguments)):
            if number in wanted:
                yield from _distinct(plan.inner, chunk)


def _shape(call: Call) -> str:
    strides = (call.query_strides, call.key_strides, call.value_strides)
    return f"{call} {' '.join(map(str, map(tuple, strides)))}"


def judged(dice: random.Random, calls: int) -> Iterator[Judged]:
    """So many calls that some backend takes."""
    while calls > 0:
        found = judge(dice)
        if found is not None:
            calls -= 1
            yield found


def main() -> None:
    """Judge many calls and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="examples of each kind")
    options = parser.parse_args()
    found: collections.Counter[str] = collections.Counter()
    for one in judged(random.Random(options.seed), options.calls):
        found[one.outcome] += 1
        if not one.outcome.startswith("agrees") and found[one.outcome] <= options.show:
            print(f"{one.outcome}: {one.words}: {one.detail}")
    for outcome, count in found.most_common():
        print(f"{count:>8} {outcome}")


if __name__ == "__main__":
    main()
