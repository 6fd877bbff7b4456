"""Makes every planned step in a process of its own, and collects what came of them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Optional, TextIO

from .measurement import GUARDED
from .outcome import Outcome, Row
from .process import COMMAND, ask
from .progress import Progress
from .savefile import SaveFile
from .shapes import Planned, Shapes


def probe(
    work: Shapes,
    gpu: str,
    *,
    saved: Optional[SaveFile] = None,
    timeout: float = 600,
    command: Sequence[str] = COMMAND,
    progress: Optional[TextIO] = None,
) -> Outcome:
    """Make every planned step, one process after the other.

    Args:
        work: of :func:`shapes.shapes`.
        gpu: its name, under which measurements are saved.
        saved: what is in it is not measured again, what is measured is added to it at once.
        timeout: the seconds that a process may take.
        command: the program that a child runs; a question in JSON is added.
        progress: where the probe writes how far it is; standard error, if open, unless given.

    Raises SaveFileError if the save file can no longer be written.
    """
    saved = saved or SaveFile()
    rows = []
    with contextlib.closing(Progress(progress or sys.stderr, len(work.planned))) as shown:
        for number, planned in enumerate(work.planned, 1):
            trial, how, predicted = planned
            measured = saved.measured(gpu, trial, how)
            if measured is None:
                shown.begin(number, f"{trial.limit} {trial} {how}")
                measured = ask(_question(planned), timeout, command).as_text()
                saved.add(gpu, trial, how, measured)
                shown.end(measured)
            rows.append(Row(trial.limit, str(trial), how, predicted, measured))
    return Outcome(gpu, tuple(rows), work.skipped)


def _question(planned: Planned) -> dict[str, Any]:
    trial = dataclasses.asdict(planned.trial)
    return {"ask": "trial", "guarded": planned.how == GUARDED, "trial": trial}
