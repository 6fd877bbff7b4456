"""What the model finds: an access, a launch or a check that goes wrong."""

from __future__ import annotations

import dataclasses

#: The kernel computes an address that is not the one meant.
ADDRESS = "address"
#: CUDA refuses the grid.
LAUNCH = "launch"
#: torch's own host code raises.
ERROR = "error"
#: The kernel reads or writes a row that is not the one meant, by its logic and not by a width.
WRONG_ROWS = "wrong rows"
#: Forward and backward, or two heads, draw dropout at the wrong places.
WRONG_DROPOUT = "wrong dropout"


@dataclasses.dataclass(frozen=True)
class Fault:
    """One rule of the kernels' sources that a launch breaks."""

    rule: str
    effect: str
    detail: str
