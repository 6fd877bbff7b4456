"""Integers as the kernels' C++ computes them: each function cuts a whole number to a width.

Two's complement wrapping, which is what the compiled kernels do; C++ itself leaves signed overflow
undefined.
"""

from __future__ import annotations

_HALF32, _MASK32 = 1 << 31, (1 << 32) - 1
_HALF64, _MASK64 = 1 << 63, (1 << 64) - 1


def int32(value: int) -> int:
    return ((value + _HALF32) & _MASK32) - _HALF32


def uint32(value: int) -> int:
    return value & _MASK32


def int64(value: int) -> int:
    return ((value + _HALF64) & _MASK64) - _HALF64


def uint64(value: int) -> int:
    return value & _MASK64


def ceil_div(count: int, size: int) -> int:
    return -(-count // size)


def round_up(count: int, multiple: int) -> int:
    return ceil_div(count, multiple) * multiple


def last_start(length: int, tile: int) -> int:
    """Where the last tile begins."""
    return (length - 1) // tile * tile
