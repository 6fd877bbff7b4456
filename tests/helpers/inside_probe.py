"""What the tests know of the inside of ``sdpa-guard probe``; see ``inside``."""

from __future__ import annotations

from sdpa_guard.probing import child, reference, step
from sdpa_guard.probing.child import measure
from sdpa_guard.probing.gpu import NoGPUError, find_gpu
from sdpa_guard.probing.gpu_memory import needed_gib
from sdpa_guard.probing.measurement import FAILS, FITS, GUARDED, UNGUARDED
from sdpa_guard.probing.outcome import Outcome, Row
from sdpa_guard.probing.recipes import RECIPES
from sdpa_guard.probing.runner import probe
from sdpa_guard.probing.savefile import SaveFile, SaveFileError
from sdpa_guard.probing.shapes import Planned, Shapes, Skipped, shapes
from sdpa_guard.probing.step import make_inputs
from sdpa_guard.probing.trial import Trial

__all__ = [
    "FAILS",
    "FITS",
    "GUARDED",
    "RECIPES",
    "UNGUARDED",
    "NoGPUError",
    "Outcome",
    "Planned",
    "Row",
    "SaveFile",
    "SaveFileError",
    "Shapes",
    "Skipped",
    "Trial",
    "child",
    "find_gpu",
    "make_inputs",
    "measure",
    "needed_gib",
    "probe",
    "reference",
    "shapes",
    "step",
]
