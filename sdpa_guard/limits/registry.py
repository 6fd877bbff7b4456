"""The registry: every known shape bound of torch's CUDA attention kernels."""

from __future__ import annotations

from . import cudnn_limits, efficient_limits, flash_limits
from .limit import Limit

#: One entry a bound, of which users make lowered ones for tests: ``dataclasses.replace(LIMITS[0],
#: bound=1000)``. The README lists them all.
LIMITS: tuple[Limit, ...] = (*flash_limits.LIMITS, *efficient_limits.LIMITS, *cudnn_limits.LIMITS)
