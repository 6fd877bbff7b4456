"""The efficient (CUTLASS) backward kernel: addresses, workspace and bias.

Line numbers are of mem_eff_attention/kernel_backward.h: "old" in facebookresearch/xformers@e8bd8f93
(2.3 to 2.7; a stored copy of torch's own header of that time has the same expressions), "new" in
the wheel of torch 2.9.1 (2.8.0 identical). Since 2.8 starts and row strides are 64-bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from . import dropout, tiles
from .fault import ADDRESS, Fault
from .launch import Launch, Strides
from .lines import Line
from .mask import bias_grad_row
from .tiles import BackwardTile
from .widths import ceil_div, int32, last_start, round_up


def faults(launch: Launch, line: Line, bias: Optional[Strides]) -> Iterator[Fault]:
    max_dim = max(launch.head_dim, launch.value_dim)
    candidates = tiles.efficient_backward(max_dim, launch.itemsize, launch.dropout)
    found = _heads(launch)
    if found is not None:
        yield found
    if launch.dropout:
        yield from dropout.faults(launch, line, candidates)
    if line >= Line.V2_8:
        return
    for found in (
        _bias_rows(launch, bias, candidates),
        _rows(launch, line, candidates),
        _workspace(launch, candidates),
    ):
        if found is not None:
            yield found


def _heads(launch: Launch) -> Optional[Fault]:
    """E9b: new:743, :801-803 (2.14.1:804-806): int32 head times int32 stride, at every line."""
    kv_head = (launch.heads - 1) // (launch.heads // launch.kv_heads)
    for name, index, stride in (
        ("query", launch.heads - 1, launch.query.head),
        ("key", kv_head, launch.key.head),
        ("value", kv_head, launch.value.head),
    ):
        if int32(index * stride) != index * stride:
            return Fault("E9b", ADDRESS, f"{name} head {index} of stride {stride}")
    return None


def _bias_rows(
    launch: Launch, bias: Optional[Strides], candidates: tuple[BackwardTile, ...]
) -> Optional[Fault]:
    """E5: old:1606 and, for the mask's gradient, old:1974: int32 times int32.

    The key's start is a second addition to the pointer, so it is not part of the wrapped number.
    """
    if bias is None:
        return None
    strides = [bias.row]
    if launch.mask_requires_grad:
        strides.append(bias_grad_row(launch))
    for tile in candidates:
        start = last_start(launch.seq_q, tile.rows)
        for stride in strides:
            if start > 0 and int32(start * stride) != start * stride:
                return Fault("E5", ADDRESS, f"bias row {start} of stride {stride}")
    return None


def _rows(launch: Launch, line: Line, candidates: tuple[BackwardTile, ...]) -> Optional[Fault]:
    """E13: every row offset is int32 times int32, old:1490-1567,
    :1794-1881, :2042-2183, :2430-2443.

    grad_out, out and the gradients lie as (batch, length, heads, dim).
    """
    query_grad = launch.heads * launch.head_dim
    value_grad = launch.heads * launch.value_dim
    for tile in candidates:
        query = last_start(launch.seq_q, tile.rows)
        read = _last_key_block(launch, line, tile)
        written = last_start(launch.seq_k, tile.keys)
        if launch.is_causal and not tile.in_registers and read < written:
            # old:1405-1430 zeroes, row by row, the gradients of keys that no query sees.
            written = launch.seq_k - 1
        # old:2523, :2527: half types sum grad_out * out row by row.
        summed = launch.seq_q - 1 if launch.itemsize == 2 else query
        for name, row, stride in (
            ("query", query, launch.query.row),
            ("key", read, launch.key.row),
            ("value", read, launch.value.row),
            ("grad_out", summed, value_grad),
            ("grad_query", query, query_grad),
            ("grad_key", written, query_grad),
            ("grad_value", written, value_grad),
        ):
            if row > 0 and int32(row * stride) != row * stride:
                return Fault("E13", ADDRESS, f"{name} row {row} of stride {stride}")
    return None


def _last_key_block(launch: Launch, line: Line, tile: BackwardTile) -> int:
    """With causality, blocks that begin after the last query are not read (old:1361-1364).

    2.3 asks for the last query tile instead (torch's header of that time, getSmallestQueryForKey).
    """
    last = last_start(launch.seq_k, tile.keys)
    if launch.is_causal:
        queries = round_up(launch.seq_q, tile.rows) if line == Line.V2_3 else launch.seq_q
        last = min(last, last_start(queries, tile.keys))
    return last


def _workspace(launch: Launch, candidates: tuple[BackwardTile, ...]) -> Optional[Fault]:
    """E15: splits times padded keys times padded dim is an int32 product, old:858-871.

    Host and kernel compute the same number, so the buffer is too small or its size negative. The
    splits: PT attention_backward.cu ("keys splitting heuristic"), at most 200 blocks in all;
    deterministic mode has one split and is not what is assumed here.
    """
    if launch.itemsize != 2:
        return None
    blocks = launch.batch * launch.heads
    for tile in candidates:
        if tile.in_registers:
            continue
        splits = max(1, min(_int16(ceil_div(launch.seq_k, tile.keys)), 200 // blocks))
        if blocks >= 256 and launch.seq_k <= 2 * tile.keys:
            splits = 1
        keys = round_up(launch.seq_k, tile.keys)
        for dim in (launch.head_dim, launch.value_dim):
            meant = splits * keys * round_up(dim, tile.rows)
            if int32(int32(splits * keys) * round_up(dim, tile.rows)) != meant:
                return Fault("E15", ADDRESS, f"workspace of {meant} elements")
    return None


def _int16(value: int) -> int:
    return ((value + (1 << 15)) & 0xFFFF) - (1 << 15)
