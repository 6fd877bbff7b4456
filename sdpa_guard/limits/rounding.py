"""Division that rounds up."""

from __future__ import annotations


def divide_up(count: int, by: int) -> int:
    """How many groups of so many hold them all."""
    return (count + by - 1) // by


def round_up(count: int, multiple: int) -> int:
    """The next multiple: one query row costs FlashAttention's workspace 128."""
    return divide_up(count, multiple) * multiple
