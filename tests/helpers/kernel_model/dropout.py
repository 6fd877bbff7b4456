"""Where the efficient kernels draw their dropout: forward and backward must agree (E7).

Forward: mem_eff_attention/kernel_forward.h, wheel 2.9.1:205-208 and :956-968. Backward:
kernel_backward.h, wheel 2.9.1:766-768 and :1710-1725; before 2.8 xformers@e8bd8f93:1725.
Each thread skips to its first element and draws the next ones in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import tiles
from .efficient_forward import keys_seen
from .fault import WRONG_DROPOUT, Fault
from .launch import Launch
from .lines import Line
from .tiles import BackwardTile
from .widths import ceil_div, int32, last_start, round_up, uint32, uint64


def faults(launch: Launch, line: Line, candidates: tuple[BackwardTile, ...]) -> Iterator[Fault]:
    """E7a is the row's part of the place, E7b that of entry and head."""
    if line <= Line.V2_12 and _rows_differ(launch, line, candidates):
        yield Fault("E7a", WRONG_DROPOUT, "forward and backward draw a row at different places")
    if line <= Line.V2_13 and _heads_differ(launch):
        yield Fault("E7b", WRONG_DROPOUT, "forward and backward draw a head at different places")


def _rows_differ(launch: Launch, line: Line, candidates: tuple[BackwardTile, ...]) -> bool:
    """Compared at the last row, whose places are the largest.

    With causality, what is drawn for keys after the row's own falls on probabilities of zero.
    """
    row = (launch.seq_q - 1) * launch.seq_k
    counted = min(launch.seq_q, launch.seq_k) if launch.is_causal else launch.seq_k
    for tile in tiles.efficient_forward(max(launch.head_dim, launch.value_dim)):
        rows = launch.seq_q - last_start(launch.seq_q, tile.rows)
        threads = tile.rows * tile.keys // 32
        seen = keys_seen(launch, line, tile)
        column = _last_column(counted, seen, tile.keys, threads // rows)
        # 2.9.1:966: uint32; 64-bit in 2.13.0:974.
        if uint64(uint32(uint32(row) + column)) != row + column:
            return True
    if line >= Line.V2_8:
        # kernel_backward.h:1723: 64-bit query start.
        return False
    for backward in candidates:
        column = _last_column(counted, launch.seq_k, backward.keys, backward.keys // 32)
        # xformers@e8bd8f93:1725: int32, then sign-extended.
        if uint64(int32(int32(row) + column)) != row + column:
            return True
    return False


def _last_column(counted: int, seen: int, tile_keys: int, threads_of_row: int) -> int:
    """The key at which the last thread that counts begins, in the last block that counts."""
    start = last_start(counted, tile_keys)
    keys = min(tile_keys, seen - start)
    each = round_up(ceil_div(keys, min(threads_of_row, keys)), 4)
    return start + last_start(counted - start, each)


def _heads_differ(launch: Launch) -> bool:
    """Compared at the first and last entries and heads and at those where a product first wraps."""
    size = launch.seq_q * launch.seq_k
    heads = _positions(launch.heads, size)
    for entry in _positions(launch.batch, launch.heads * size):
        for head in heads:
            if _forward(launch, entry, head) != _backward(launch, entry, head):
                return True
    return False


def _positions(count: int, size: int) -> set[int]:
    """Products count modulo 2**32, so the rest of the size says where they first wrap."""
    rest = size % (1 << 32)
    wraps = (ceil_div(1 << 31, rest), ceil_div(1 << 32, rest)) if rest else ()
    return {i for i in (0, 1, count - 1, *wraps) if i < count}


def _forward(launch: Launch, entry: int, head: int) -> int:
    """wheel 2.9.1 kernel_forward.h:206-208: uint32, whole numbers from 2.14 on."""
    by_entry = uint32(uint32(uint32(entry * launch.heads) * launch.seq_q) * launch.seq_k)
    return uint32(by_entry + uint32(uint32(head * launch.seq_q) * launch.seq_k))


def _backward(launch: Launch, entry: int, head: int) -> int:
    """wheel 2.9.1 kernel_backward.h:766-768: int64 entry, int32 products."""
    of_entry = int32(int32(launch.heads * launch.seq_q) * launch.seq_k)
    return uint64(entry * of_entry + int32(head * int32(launch.seq_q * launch.seq_k)))
