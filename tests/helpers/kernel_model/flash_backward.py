"""FlashAttention's backward: dot_do_o (preprocess), the main dq/dk/dv kernel and convert_dq.

FA is Dao-AILab/flash-attention, csrc/flash_attn/src unless said. All three walk the float
accumulator of dq with one expression; the main kernel also steps back through the query.

Not faults at any line: key, value, out, grad_out and the gradients (64-bit strides); dk and dv of
grouped heads (expanded to the query's heads, 64-bit); the split offset of deterministic mode (added
last, in 64 bits); rows inside one tile (at most 127 * 65535 * 64, below 2**31).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from . import tiles
from .fault import ADDRESS, Fault
from .launch import Launch
from .lines import Line
from .widths import int32, int64, last_start, round_up


def rounded_dim(dim: int, line: Line) -> int:
    """PT flash_api.cpp@ef3d5c9e rounds to 32; from 2.11 on to 64 above 128 (pytorch#174114)."""
    return round_up(dim, 64 if line >= Line.V2_11 and dim > 128 else 32)


def faults(launch: Launch, line: Line) -> Iterator[Fault]:
    for found in (
        _dq_accumulator(launch, line),
        _query_step(launch),
        _row_sums(launch),
    ):
        if found is not None:
            yield found


def _dq_accumulator(launch: Launch, line: Line) -> Optional[Fault]:
    """F1, F1p: where a block's tile of the dq accumulator begins."""
    if line >= Line.V2_12:
        # FA@fec3a6a1 flash_bwd_kernel.h:120-123 and flash_bwd_preprocess_kernel.h:81-84, :209-212
        # make both strides 64-bit first (FA#2260). 14c37795 is the same.
        return None
    heads, entry, head = launch.heads, launch.batch - 1, launch.heads - 1
    rows, dim = round_up(launch.seq_q, 128), rounded_dim(launch.head_dim, line)
    entry_size = rows * heads * dim
    # block_info.h:28-31 (all of FA 2): q_offset takes the type of its arguments, here int.
    entry_offset = int32(entry * int32(int32(rows * heads) * dim))
    for tile in tiles.flash_backward_rows(launch.head_dim):
        # The whole tile is cleared, added to and read, so its first element is always reached.
        start = last_start(launch.seq_q, tile)
        meant = entry * entry_size + start * heads * dim + head * dim
        if line >= Line.V2_11:
            # FA@e2743ab5 flash_bwd_kernel.h:120-121: 128ll makes the block's addend 64-bit
            # (FA#1500), the entry's product stays int.
            computed = int64(entry_offset + start * heads * dim + int32(head * dim))
        else:
            # FA@979702c8 flash_bwd_kernel.h:120-121, flash_bwd_preprocess_kernel.h:81-82 and
            # :207-208; FA@v2.5.6 :119, :80, :205: all in int.
            block = int32(int32(start * heads) * dim)
            computed = int32(int32(entry_offset + block) + int32(head * dim))
        if computed != meant:
            rule = "F1p" if line >= Line.V2_11 else "F1"
            detail = f"dq accumulator offset {meant} computed as {computed}, {tile} rows a tile"
            return Fault(rule, ADDRESS, detail)
    return None


def _query_step(launch: Launch) -> Optional[Fault]:
    """F5: the step from one block of query rows to the one before it, in the main kernel.

    FA@14c37795 flash_bwd_kernel.h:617 and :698; FA@v2.5.6 :602 and :683. The last block's own
    offset is 64-bit. grad_out and out step alike but are contiguous by then (PT
    attention_backward.cu, _flash_attention_backward), with rows of heads * head_dim.
    """
    for tile in tiles.flash_backward_rows(launch.head_dim):
        if launch.seq_q <= tile:
            continue
        step = tile * launch.query.row
        if int32(-int32(step)) != -step:
            detail = f"step of {tile} query rows of stride {launch.query.row}"
            return Fault("F5", ADDRESS, detail)
    return None


def _row_sums(launch: Launch) -> Optional[Fault]:
    """F4b: logsumexp and the sums of dot_do_o, one float a row, in int at every line.

    FA@14c37795 flash_bwd_kernel.h:126 and :128, flash_bwd_preprocess_kernel.h:86.
    """
    heads, entry, head = launch.heads, launch.batch - 1, launch.heads - 1
    for name, rows in (("logsumexp", launch.seq_q), ("sums", round_up(launch.seq_q, 128))):
        for tile in tiles.flash_backward_rows(launch.head_dim):
            start = last_start(launch.seq_q, tile)
            computed = int32(int32(int32(int32(entry * heads) + head) * rows) + start)
            meant = (entry * heads + head) * rows + start
            if computed != meant:
                return Fault("F4b", ADDRESS, f"{name} offset {meant} computed as {computed}")
    return None
