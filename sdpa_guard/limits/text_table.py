"""Tables: plain text that fits a terminal, and Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

#: Columns of text; what the tables must fit.
WIDTH = 100


def fill(text: str) -> str:
    """A paragraph."""
    return "\n".join(_wrap(text, WIDTH))


def _wrap(text: str, width: int) -> list[str]:
    # A hyphen is part of a name here, as in "sdpa-guard".
    return textwrap.wrap(text, width, break_on_hyphens=False)


def render(header: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> str:
    """An aligned table; the widest columns are wrapped until a line fits the width."""
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for number, row in enumerate(table):
        cells = [_wrap(cell, size) or [""] for cell, size in zip(row, widths)]
        for line in range(max(map(len, cells))):
            parts = [cell[line] if line < len(cell) else "" for cell in cells]
            text = "  ".join(part.ljust(size) for part, size in zip(parts, widths))
            lines.append(text.rstrip())
        if number == 0:
            lines.append("  ".join("-" * size for size in widths))
    return "\n".join(lines)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
