"""The known bounds of torch's cuDNN attention, one entry each.

Where a kernel computes a number in several ways, the entry counts the one that is never too small.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from . import cudnn_counts as counts
from .backends import CUDNN
from .call import BATCH, HEADS
from .integer_ends import GRID
from .limit import BACKWARD, BOTH, FORWARD, Limit

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
    Limit(
        id="C2",
        name="cudnn half-full key block",
        backend=CUDNN,
        pass_=BACKWARD,
        formula="2 if seq_k % 128 == 64 and (mask or not is_causal) else 0",
        counted=counts.half_full_block,
        bound=1,
        cures=(),
        versions=SpecifierSet(">=2.11,<2.15"),
        effect="NaN in the query's gradient where a row's logsumexp is below about -88.7",
        evidence=("measured", "maintainer"),
        source=f"{_PT}/issues/196678",
        capability=(9, 0),
    ),
    Limit(
        id="C3",
        name="cudnn grouped decode",
        backend=CUDNN,
        pass_=FORWARD,
        formula="2 if seq_q == 1 and heads > kv_heads else 0",
        counted=counts.grouped_decode,
        bound=1,
        cures=(),
        versions=SpecifierSet(">=2.11"),
        effect="silently wrong values",
        evidence=("measured", "maintainer"),
        source=f"{_PT}/issues/193893",
        capability=(10, 0),
    ),
)
