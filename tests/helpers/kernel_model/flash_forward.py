"""FlashAttention's forward kernels: addresses.

FA is Dao-AILab/flash-attention, csrc/flash_attn/src unless said. Query, key, value and output are
reached through 64-bit strides (flash.h: index_t is int64 since FA@000b67f5), so the products below
are what is left in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from . import tiles
from .fault import ADDRESS, Fault
from .launch import Launch
from .lines import Line
from .widths import ceil_div, int32, last_start

#: Multiprocessors of the GPUs from sm80 on, smallest to largest: the split depends on them.
MULTIPROCESSORS = (
    *(8, 14, 16, 20, 24, 30, 36, 46, 48, 56, 58, 66, 72, 78, 82, 84, 98),
    *(108, 114, 128, 132, 142, 148, 160, 170, 188),
)
_MOST_MULTIPROCESSORS = max(MULTIPROCESSORS)


class _Problem(NamedTuple):
    """Heads and query rows as the forward sees them, after the single-row swap."""

    heads: int
    rows: int


def problem(launch: Launch) -> _Problem:
    """One query row with grouped heads, without dropout: the group becomes the rows.

    PT flash_attn/flash_api.cpp@ef3d5c9e mha_fwd (seqlenq_ngroups_swapped); FA@979702c8 the same.
    """
    if launch.seq_q == 1 and launch.heads > launch.kv_heads and not launch.dropout:
        return _Problem(launch.kv_heads, launch.heads // launch.kv_heads)
    return _Problem(launch.heads, launch.seq_q)


def faults(launch: Launch, line: Line) -> Iterator[Fault]:
    heads, rows = problem(launch)
    causal = launch.is_causal and launch.seq_q > 1
    found = _logsumexp(launch, line, heads, rows, causal)
    if found is not None:
        yield found
    longest = max(launch.key.row, launch.value.row)
    if line <= Line.V2_4:
        found = _key_step(launch, longest, causal)
        if found is not None:
            yield found
    found = _split_key_step(launch, longest, heads, rows)
    if found is not None:
        yield found


def _logsumexp(launch: Launch, line: Line, heads: int, rows: int, causal: bool) -> Optional[Fault]:
    """F4a: where the last head of the last entry keeps its logsumexp."""
    entry, head = launch.batch - 1, heads - 1
    if line <= Line.V2_4:
        # FA@v2.5.6 flash_fwd_kernel.h:73 and :426: entry, head and block in one int.
        for tile in tiles.flash_forward(launch.head_dim, launch.dropout, causal):
            start = last_start(rows, tile.rows)
            computed = int32(int32(int32(int32(entry * heads) + head) * rows) + start)
            meant = (entry * heads + head) * rows + start
            if computed != meant:
                return Fault("F4a", ADDRESS, f"logsumexp offset {meant} computed as {computed}")
        return None
    # FA@979702c8 flash_fwd_kernel.h:36-46 (14c37795 the same): a layout of int strides is sliced
    # at entry and head; the block is added to the pointer afterwards.
    computed = int32(int32(entry * int32(heads * rows)) + int32(head * rows))
    meant = entry * heads * rows + head * rows
    if computed != meant:
        return Fault("F4a", ADDRESS, f"logsumexp offset {meant} computed as {computed}")
    return None


def _key_step(launch: Launch, row: int, causal: bool) -> Optional[Fault]:
    """F5kv: the step from one block of keys or values to the one before it."""
    # FA@v2.5.6 flash_fwd_kernel.h:284, 308, 358, 371. Gone in FA@656daef4 (2.5.7).
    for tile in tiles.flash_forward(launch.head_dim, launch.dropout, causal):
        if launch.seq_k > tile.keys and _cut_step(tile.keys * row) != -tile.keys * row:
            return Fault("F5kv", ADDRESS, f"step of {tile.keys} key rows of stride {row}")
    return None


def _split_key_step(launch: Launch, row: int, heads: int, rows: int) -> Optional[Fault]:
    """F5s: the same step in the kernel that splits the keys, which every release has.

    FA@14c37795 flash_fwd_kernel.h:869, 908, 951, 975 (979702c8: 862, 901, 944, 968; v2.5.6: 836,
    871, 914, 935). It runs when the heuristic finds idle multiprocessors, never with dropout.
    """
    keys = tiles.flash_split_keys(launch.head_dim)
    if launch.dropout or launch.seq_k <= keys or _cut_step(keys * row) == -keys * row:
        return None
    blocks = launch.batch * heads * ceil_div(rows, 64)
    if not blocks < _FULL * 2 * _MOST_MULTIPROCESSORS:
        return None
    key_blocks = ceil_div(launch.seq_k, keys)
    for count in MULTIPROCESSORS:
        splits = _splits(blocks, 2 * count, key_blocks)
        # A split of one block never steps (flash_fwd_kernel.h:527-531).
        if splits > 1 and ceil_div(key_blocks, splits) > 1:
            detail = f"step of {keys} key rows of stride {row}, {splits} splits"
            return Fault("F5s", ADDRESS, detail)
    return None


def _cut_step(elements: int) -> int:
    """The 64-bit product is cut to int, then negated in int."""
    return int32(-int32(elements))


#: 0.8f
_FULL = 0.800000011920929


def _splits(blocks: int, slots: int, key_blocks: int) -> int:
    """FA@979702c8 csrc/flash_attn/flash_api.cpp:263-297 (PT flash_api.cpp@ef3d5c9e the same).

    The fewest splits within 85 percent of the best occupancy, among those that change how many
    blocks a split gets.
    """
    if blocks >= _FULL * slots:
        return 1
    most = min(128, slots, key_blocks)
    eligible = [n for n in range(1, most + 1) if n == 1 or _shrinks(key_blocks, n)]
    efficiency = [_efficiency(blocks * n, slots) for n in eligible]
    best = max(efficiency)
    return next(n for n, got in zip(eligible, efficiency) if got >= 0.85 * best)


def _shrinks(key_blocks: int, splits: int) -> bool:
    return ceil_div(key_blocks, splits) != ceil_div(key_blocks, splits - 1)


def _efficiency(blocks: int, slots: int) -> float:
    waves = blocks / slots
    return waves / ceil_div(blocks, slots)
