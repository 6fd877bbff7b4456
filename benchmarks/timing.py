"""Interleaved timing: variants of one thing take turns, and are compared turn by turn."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Callable, Optional


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to do the thing: what is called, and the scope that it is called in."""

    call: Callable[[], object]
    scope: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    def seconds(self, calls: int) -> float:
        """The time of that many calls, without entering and leaving the scope."""
        with self.scope():
            self.call()
            start = time.perf_counter()
            for _ in range(calls):
                self.call()
            return time.perf_counter() - start


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median of the turns, and their quartiles."""

    median: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Result:
    """One figure of the table."""

    #: The row that it belongs to.
    row: str
    what: str
    against: str
    spread: Spread
    #: "x" for a ratio; "us", "ms" or "" for what it is in itself.
    unit: str
    #: The figure to reach; None where it is only shown.
    reach: Optional[float] = None
    at_least: bool = False
    #: The figure where this package's own work is taken away.
    floor: Optional[float] = None

    @property
    def reached(self) -> Optional[bool]:
        if self.reach is None:
            return None
        median = round(self.spread.median, 3)
        return median >= self.reach if self.at_least else median <= self.reach


def take_turns(seconds: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """The seconds that each variant took in each turn; who begins a turn changes."""
    names = list(seconds)
    for name in names:
        seconds[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(turns):
            at = turn % len(names)
            for name in (*names[at:], *names[:at]):
                taken[name].append(seconds[name]())
    finally:
        gc.enable()
    return taken


def time_calls(variants: Mapping[str, Variant], calls: int, turns: int) -> dict[str, list[float]]:
    """The seconds for one call of each variant in each turn."""

    def one(variant: Variant) -> Callable[[], float]:
        return lambda: variant.seconds(calls) / calls

    return take_turns({name: one(variant) for name, variant in variants.items()}, turns)


def ratio(taken: Mapping[str, Sequence[float]], what: str, against: str) -> Spread:
    """One variant's time over another's."""
    return spread([a / b for a, b in zip(taken[what], taken[against])])


def added(taken: Mapping[str, Sequence[float]], what: str, against: str) -> Spread:
    """The microseconds that one variant takes longer than another."""
    return spread([1e6 * (a - b) for a, b in zip(taken[what], taken[against])])


def spread(figures: Sequence[float]) -> Spread:
    """Median and quartiles."""
    if len(figures) == 1:
        return Spread(figures[0], figures[0], figures[0])
    low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
    return Spread(median, low, high)
