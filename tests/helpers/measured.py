"""Shapes that people reported and measured; the tables in data/ name each source."""

from __future__ import annotations

import csv
from pathlib import Path

_DATA = Path(__file__).parent.parent / "data"


def _rows(name: str) -> list[dict[str, str]]:
    with (_DATA / name).open() as file:
        return list(csv.DictReader(file))


#: The publicly reported shapes.
CASES = _rows("cases.csv")
#: Measured on torch 2.9.0 with FlashAttention: https://github.com/PriorLabs/TabPFN/issues/1184.
SEED_TABLE = _rows("seed_table.csv")
