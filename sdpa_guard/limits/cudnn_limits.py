"""The known bounds of torch's cuDNN attention, one entry each.

Where a kernel computes a number in several ways, the entry counts the one that is never too small.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from . import counts
from .backends import CUDNN
from .call import BATCH, HEADS
from .limit import BOTH, GRID, Limit

_PT = "https://github.com/pytorch/pytorch"

LIMITS: tuple[Limit, ...] = (
    Limit(
        id="C1",
        name="cudnn grid",
        backend=CUDNN,
        pass_=BOTH,
        formula="max(batch, heads)",
        counted=counts.larger_grid_axis,
        bound=GRID,
        cures=(BATCH, HEADS),
        versions=SpecifierSet(">=2.5,<2.13"),
        effect="a clear error; torch from 2.13 gives the call to flash instead, which has F2b, F2h",
        evidence=("measured", "binary"),
        source=f"{_PT}/issues/181235",
    ),
)
