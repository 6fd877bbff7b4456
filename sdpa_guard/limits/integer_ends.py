"""Where the kernels' integers and grids end."""

from __future__ import annotations

INT32 = 2**31 - 1
UINT32 = 2**32 - 1
#: CUDA's bound for the y and z axes of a grid.
GRID = 65535
#: No size of a real tensor is larger.
LARGEST_SIZE = 2**40
