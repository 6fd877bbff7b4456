"""What was measured, beside what the registry predicts."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import torch

from ..limits.text_table import render
from .measurement import agrees
from .shapes import Skipped

_MARKS = {True: "ok", False: "DIFFERS", None: "?"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement beside what the registry predicts."""

    limit: str
    shape: str
    #: "unguarded" or "guarded".
    how: str
    #: "fits" or "fails".
    predicted: str
    #: "passes", or what went wrong.
    measured: str

    @property
    def agrees(self) -> Optional[bool]:
        """Whether it was measured as predicted; None where the measurement tells neither."""
        return agrees(self.predicted, self.measured)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What ``probe`` measured. ``print`` it for a table."""

    gpu: str
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]

    @property
    def disagreements(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.agrees is False)

    @property
    def told(self) -> int:
        """How many measurements tell something."""
        return sum(row.agrees is not None for row in self.rows)

    @property
    def is_good(self) -> bool:
        """Something was measured, and all of it as the registry predicts."""
        return self.told > 0 and not self.disagreements

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "gpu": self.gpu,
            "torch": torch.__version__,
            "rows": [{**dataclasses.asdict(row), "agrees": row.agrees} for row in self.rows],
            "skipped": [skipped._asdict() for skipped in self.skipped],
            "measured": self.told,
            "disagreements": len(self.disagreements),
        }

    def __str__(self) -> str:
        rows = [
            (_MARKS[row.agrees], row.limit, row.shape, row.how, row.predicted, row.measured)
            for row in self.rows
        ]
        rows += [("skipped", s.limit, s.shape, "", "", s.reason) for s in self.skipped]
        sentence = (
            f"{self.gpu}, torch {torch.__version__}: {self.told} measured, "
            f"{len(self.disagreements)} not as the registry predicts; "
            f"{len(self.rows) - self.told} inconclusive, {len(self.skipped)} skipped"
        )
        if not rows:
            return sentence
        header = ("", "limit", "shape", "how", "predicted", "measured")
        return f"{render(header, rows)}\n\n{sentence}"
