"""The efficient forward's path for a tile of one query row, where heads become rows (E12).

Read in the wheels' mem_eff_attention/kernel_forward.h, advance_to_block (2.9.1:293-313; 2.8.0,
2.12.1 and 2.13.0 the same; 2.14.1:299-323), and for 2.3 in PT kernel_forward.h@01b4eaef. The test
comes after the tile's start was subtracted, so it is the last tile of any call with
``seq_q % tile == 1``, when key and value have head stride 0 and no logsumexp is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from .fault import WRONG_DROPOUT, WRONG_ROWS, Fault
from .launch import Launch, Strides
from .lines import Line
from .tiles import Tile
from .widths import int32, last_start, uint32


def takes(launch: Launch, line: Line, tile: Tile) -> bool:
    """Whether the last tile of each head runs this way."""
    return (
        launch.key.head == 0
        and launch.value.head == 0
        and (launch.seq_q - 1) % tile.rows == 0
        and not launch.needs_logsumexp
        # wheel 2.14.1 kernel_forward.h:306-310 leaves dropout out.
        and not (launch.dropout and line >= Line.V2_14)
    )


def faults(
    launch: Launch, line: Line, bias: Optional[Strides], tiles: tuple[Tile, ...]
) -> Iterator[Fault]:
    """Each consequence once, whichever tile has it."""
    tiles = tuple(tile for tile in tiles if takes(launch, line, tile))
    if not tiles:
        return
    if bias is not None and any(_reads_another_bias(launch, line, bias, tile) for tile in tiles):
        yield Fault("E12", WRONG_ROWS, "bias: rows of the mask that belong to others are read")
    if line >= Line.V2_14:
        # 2.14.1:317 counts the heads from this one on; :289-297 counts the keys of this row only.
        return
    if any(_runs_past_heads(launch, tile) for tile in tiles):
        yield Fault("E12", WRONG_ROWS, f"heads: rows past head {launch.heads} are read and written")
    if any(_sees_later_keys(launch, tile) for tile in tiles):
        yield Fault("E12", WRONG_ROWS, "causal: the row sees keys that lie after it")
    if launch.dropout and launch.heads > 1 and launch.seq_q > 1:
        # Head i draws at (query_start + i) * num_keys instead of its own head's place
        # (2.9.1:964-968); with one query row the two are the same.
        yield Fault("E12", WRONG_DROPOUT, "dropout: heads draw at the places of other rows")


def _reads_another_bias(launch: Launch, line: Line, bias: Strides, tile: Tile) -> bool:
    """Compare the first and the last row (head) of the first and the last such tile."""
    start = last_start(launch.seq_q, tile.rows)
    for first in {0, last_start(launch.heads, tile.rows)}:
        last = min(tile.rows, launch.heads - first) - 1
        for row in {0, last}:
            computed = _bias_offset(line, bias, start, row)
            if computed != row * bias.head + start * bias.row:
                return True
    return False


def _bias_offset(line: Line, bias: Strides, start: int, row: int) -> int:
    """From the head's own bias to the one that is read for the row (head) of the tile."""
    if line == Line.V2_3:
        # PT kernel_forward.h@01b4eaef keeps the row stride.
        return uint32(start * bias.row) + row * bias.row
    # The head stride (64-bit) becomes the row stride (int32): 2.9.1:306; xformers@e8bd8f93:335.
    step = int32(bias.head)
    if line <= Line.V2_12:
        # 2.9.1:811: uint32 times int32.
        return uint32(start * step) + row * step
    if line == Line.V2_13:
        # 2.13.0:815.
        return start * step + row * step
    # 2.14.1:262-264 adds the start before the stride changes.
    return start * bias.row + row * step


def _runs_past_heads(launch: Launch, tile: Tile) -> bool:
    """Every block of heads counts all heads (2.9.1:307), also those that lie before it."""
    first = last_start(launch.heads, tile.rows)
    return first + min(tile.rows, launch.heads) > launch.heads


def _sees_later_keys(launch: Launch, tile: Tile) -> bool:
    """The keys were counted for a whole tile (2.9.1:282-290), then causality is dropped (:311)."""
    if not launch.is_causal:
        return False
    start = last_start(launch.seq_q, tile.rows)
    return min(int32(start + tile.rows), launch.seq_k) != min(start + 1, launch.seq_k)
