"""The efficient (CUTLASS) forward kernel: addresses.

Line numbers are of mem_eff_attention/kernel_forward.h in the wheel of torch 2.9.1, unless another
wheel is named. 2.8.0 is identical, 2.12.1 one line later. For 2.3: PT kernel_forward.h@01b4eaef;
2.4 to 2.7: facebookresearch/xformers@e8bd8f93, which 2.8.0 equals in these lines.

blockIdx is unsigned, so products of it with int32 members are uint32. Rows inside one tile are
reached with 64-bit offsets (CUTLASS iterators).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from . import host, one_row, tiles
from .fault import ADDRESS, Fault
from .launch import Launch, Strides
from .lines import Line
from .tiles import Tile
from .widths import int32, int64, last_start, round_up, uint32


def faults(launch: Launch, line: Line, bias: Optional[Strides]) -> Iterator[Fault]:
    candidates = tiles.efficient_forward(max(launch.head_dim, launch.value_dim))
    for found in (
        _key_blocks(launch, line, candidates),
        _heads(launch, line, candidates),
        _bias_rows(launch, line, bias, candidates),
        _output_rows(launch, line),
        _logsumexp(launch, line, candidates),
    ):
        if found is not None:
            yield found
    if launch.key.head == 0 == launch.value.head:
        yield from one_row.faults(launch, line, bias, candidates)


def keys_seen(launch: Launch, line: Line, tile: Tile) -> int:
    """How many keys the last query tile goes through: causality counts from the top left."""
    if not launch.is_causal:
        return launch.seq_k
    start = last_start(launch.seq_q, tile.rows)
    # :282-290; 2.14.1:289-297 counts the rows that there are.
    rows = tile.rows if line <= Line.V2_13 else min(tile.rows, launch.seq_q - start)
    return min(int32(start + rows), launch.seq_k)


def _key_blocks(launch: Launch, line: Line, candidates: tuple[Tile, ...]) -> Optional[Fault]:
    """E8: :720, :764, :1014 (2.14.1 too): int32 block start times int32 row stride."""
    for tile in candidates:
        start = last_start(keys_seen(launch, line, tile), tile.keys)
        for name, stride in (("key", launch.key.row), ("value", launch.value.row)):
            if start > 0 and int32(start * stride) != start * stride:
                return Fault("E8", ADDRESS, f"{name} block {start} of row stride {stride}")
    return None


def _heads(launch: Launch, line: Line, candidates: tuple[Tile, ...]) -> Optional[Fault]:
    """E9f: :250-253; 2.14.1:253-256 has the key/value head for keys and values."""
    kv_head = (launch.heads - 1) // (launch.heads // launch.kv_heads)
    for tile in candidates:
        head = launch.heads - 1
        if launch.seq_q == 1 and one_row.takes(launch, line, tile):
            # Only heads that begin a tile keep their block.
            head = last_start(launch.heads, tile.rows)
        for name, index, stride in (
            ("query", head, launch.query.head),
            ("key", kv_head, launch.key.head),
            ("value", kv_head, launch.value.head),
        ):
            if uint32(index * stride) != index * stride:
                return Fault("E9f", ADDRESS, f"{name} head {index} of stride {stride}")
    return None


def _bias_rows(
    launch: Launch, line: Line, bias: Optional[Strides], candidates: tuple[Tile, ...]
) -> Optional[Fault]:
    """E6: :811: uint32 tile start times int32 row stride; the key's start is added to the pointer.

    64-bit in 2.13.0:815. The one-row path is left to its own module.
    """
    if bias is None or line >= Line.V2_13:
        return None
    for tile in candidates:
        start = last_start(launch.seq_q, tile.rows)
        if start > 0 and one_row.takes(launch, line, tile):
            start -= tile.rows
        computed = uint32(start * bias.row)
        if start > 0 and computed != start * bias.row:
            detail = f"bias row {start} of stride {bias.row} read at {computed}"
            return Fault("E6", ADDRESS, detail)
    return None


def _output_rows(launch: Launch, line: Line) -> Optional[Fault]:
    """E10, output: :240-243: uint32 entry times int32 rows, widened afterwards.

    64-bit in 2.14.1:243-247.
    """
    if line >= Line.V2_14:
        return None
    entry = host.chunk_batch(launch, line) - 1
    if int64(uint32(entry * launch.seq_q)) != entry * launch.seq_q:
        return Fault("E10", ADDRESS, f"output of entry {entry}")
    return None


def _logsumexp(launch: Launch, line: Line, candidates: tuple[Tile, ...]) -> Optional[Fault]:
    """E10, logsumexp: :203, :269-272: uint32 throughout; rows padded to 32.

    64-bit in 2.14.1:275-279.
    """
    if line >= Line.V2_14 or not launch.needs_logsumexp:
        return None
    entry, head = host.chunk_batch(launch, line) - 1, launch.heads - 1
    rows = round_up(launch.seq_q, 32)
    for tile in candidates:
        start = last_start(launch.seq_q, tile.rows)
        by_entry = uint32(uint32(entry * rows) * launch.heads)
        computed = uint32(uint32(by_entry + uint32(head * rows)) + start)
        meant = entry * rows * launch.heads + head * rows + start
        if computed != meant:
            return Fault("E10", ADDRESS, f"logsumexp offset {meant} computed as {computed}")
    return None
