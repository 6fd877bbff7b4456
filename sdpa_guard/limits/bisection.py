"""Find where something stops fitting."""

from __future__ import annotations

from typing import Callable


def largest(fits: Callable[[int], bool], fitting: int, beyond: int) -> int:
    """The largest number that fits.

    Args:
        fits: whether a number fits; those larger than one that does not fit do not fit either.
        fitting: a number that fits.
        beyond: a larger one that does not.
    """
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if fits(middle):
            fitting = middle
        else:
            beyond = middle
    return fitting
