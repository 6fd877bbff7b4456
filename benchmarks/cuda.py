"""The same questions on a CUDA GPU: ``python -m benchmarks.cuda [--json FILE]``, in minutes.

It prints one line and ends with status 1 where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import SDPAGuard, check

from .calls import unsplit_call
from .splits import Attend, Step, by_hand, limits, training
from .table import add_arguments, publish
from .timing import Result, Variant, ratio, spread, time_calls

#: Inside every bound, and large enough that the kernels are what takes the time.
SHAPE = (64, 16, 2048, 128)
#: Over the bound of FlashAttention's backward.
OVER = (400, 4, 10496, 128)
TURNS = 21
flash = functools.partial(sdpa_kernel, SDPBackend.FLASH_ATTENTION)
efficient = functools.partial(sdpa_kernel, SDPBackend.EFFICIENT_ATTENTION)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.cuda: there is no CUDA GPU here", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    results = [*unsplit_call("cuda"), *splits(), *peaks(), *over_the_bound()]
    publish(results, torch.cuda.get_device_name(), options)
    return 0


def splits() -> list[Result]:
    """Forward and backward in chunks, against the whole call and another backend."""
    step = training_on(SHAPE)
    variants = {"whole": Variant(step, flash), "efficient": Variant(step, efficient)}
    variants.update({f"{n} chunks": Variant(step, in_chunks(n)) for n in (2, 4, 16, 64)})
    hand = functools.partial(by_hand, size=SHAPE[0] // 64)
    variants["64 by hand"] = Variant(training_on(SHAPE, hand), flash)
    taken = time_calls(variants, 1, TURNS)
    results = []
    for name in variants:
        if name == "whole":
            continue
        figure = ratio(taken, name, "whole")
        reach = 1.05 if name.endswith("chunks") else None
        results.append(Result("split", name, "the whole call, flash", figure, "x", reach))
    return results


def peaks() -> list[Result]:
    """The most memory that is allocated at once, inputs and gradients included."""
    results = []
    for step, reach, attend in (
        ("training", 1.15, training_on(SHAPE)),
        ("inference", 1.05, inference_on(SHAPE)),
    ):
        with flash():
            whole = peak(attend)
        for chunks in (2, 16, 64):
            with in_chunks(chunks)():
                figure = spread([peak(attend) / whole])
            what = f"{step}, {chunks} chunks"
            results.append(Result("peak-memory", what, "the whole call", figure, "x", reach))
    return results


def over_the_bound() -> list[Result]:
    """The guard's split where flash alone fails, against the efficient backend."""
    batch, heads, rows, head_dim = OVER
    fits = check(batch, heads, rows, head_dim, backends=("efficient",)).ok
    needed = 12 * 2 * batch * heads * rows * head_dim
    free, _ = torch.cuda.mem_get_info()
    if not fits or free < needed:
        why = f"{needed / 2**30:.0f} GiB are needed" if fits else "the efficient backend fails"
        print(f"split over the bound is left out: {why}", file=sys.stderr)
        return []
    step = training_on(OVER)
    variants = {
        "guarded flash": Variant(step, guarded()),
        "efficient": Variant(step, efficient),
    }
    taken = time_calls(variants, 1, 5)
    against, what = "the efficient backend", "x".join(map(str, OVER))
    return [
        Result("over", what, against, ratio(taken, "guarded flash", "efficient"), "x"),
    ]


def training_on(shape: tuple[int, ...], attend: Attend = scaled_dot_product_attention) -> Step:
    """Forward and backward."""
    *whole, grad = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    return finished(training(attend, [tensor.requires_grad_() for tensor in whole], grad))


def inference_on(shape: tuple[int, ...]) -> Step:
    """Forward alone."""
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    attend = torch.no_grad()(scaled_dot_product_attention)
    return finished(lambda: attend(query, key, value))


def finished(step: Step) -> Step:
    """The step, to the end of the work that it hands to the GPU."""

    def wait() -> None:
        step()
        torch.cuda.synchronize()

    return wait


def peak(step: Step) -> int:
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


def guarded(**settings: Any) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Flash attention, inside a guard of these settings."""

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with flash(), SDPAGuard(**settings):
            yield

    return scope


def in_chunks(chunks: int) -> Callable[[], contextlib.AbstractContextManager[None]]:
    return guarded(limits=limits(SHAPE[0] // chunks))


if __name__ == "__main__":
    sys.exit(main())
