"""The ways to cut one axis of a call into balanced chunks, from few to many."""

from __future__ import annotations

from typing import NamedTuple

from .call import HEADS, Axis, Call
from .rounding import divide_up


class Cuts(NamedTuple):
    """The ways to cut an axis, numbered from 1: more chunks, none of them larger.

    Heads are cut into whole groups while there are some to part, then each group into equal
    numbers of query heads, which share its key/value head.
    """

    axis: Axis
    #: What is cut first: batch entries, key/value groups, query rows.
    units: int
    #: The query heads of one group; 1 along another axis.
    group: int

    # Dynamo, in torch 2.9, traces no property of a named tuple.
    def most(self) -> int:
        """The number of the finest cut."""
        return self.units + self.group - 1

    def chunks(self, number: int) -> int:
        """How many chunks it makes."""
        within = number - self.units
        return number if within <= 0 else self.units * (within + 1)

    def largest(self, number: int) -> int:
        """The length of its largest chunk."""
        within = number - self.units
        return (
            divide_up(self.units, number) * self.group
            if within <= 0
            else divide_up(self.group, within + 1)
        )

    def fewest(self, length: int) -> int:
        """The coarsest cut whose largest chunk is no longer than that."""
        if length >= self.group:
            return divide_up(self.units, length // self.group)
        return self.units + divide_up(self.group, length) - 1

    def sizes(self, number: int) -> tuple[int, ...]:
        """The lengths of its chunks, which differ by one unit at most."""
        within = number - self.units
        if within <= 0:
            return _balanced(self.units, number, self.group)
        return _balanced(self.group, within + 1, 1) * self.units


def cuts_of(call: Call, axis: Axis) -> Cuts:
    """The ways to cut that axis of the call."""
    if axis == HEADS:
        return Cuts(axis, call.kv_heads, call.group)
    return Cuts(axis, call.length(axis), 1)


def _balanced(units: int, chunks: int, unit: int) -> tuple[int, ...]:
    """Larger chunks first."""
    size, larger = units // chunks, units % chunks  # torch.compile cannot trace divmod
    return ((size + 1) * unit,) * larger + (size * unit,) * (chunks - larger)
