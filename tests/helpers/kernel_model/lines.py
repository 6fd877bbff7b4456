"""The torch release lines that the kernels' arithmetic tells apart.

- 2.3, 2.4: vendored FlashAttention up to 2.5.6. 2.4 has a newer efficient forward than 2.3: its
  operator has ``window_size`` and no ``causal_diagonal`` (native_functions.yaml in both wheels),
  as facebookresearch/xformers@e8bd8f93 has.
- 2.5 to 2.7: FlashAttention 2.5.7 and then Dao-AILab/flash-attention@979702c8.
- 2.8 to 2.10: efficient kernels with 64-bit row strides in the backward, batch cut in C++.
- 2.11: flash-attention@e2743ab5. 2.12: flash-attention@fec3a6a1 or later.
- 2.13: 64-bit bias and dropout rows in the efficient forward. 2.14: its 64-bit batch offsets.
- 2.15: not read here; from its strings and headers as others noted them.
"""

from __future__ import annotations

import enum


class Line(enum.IntEnum):
    """A release line; comparisons follow the releases."""

    V2_3 = 203
    V2_4 = 204
    V2_5 = 205
    V2_8 = 208
    V2_11 = 211
    V2_12 = 212
    V2_13 = 213
    V2_14 = 214
    V2_15 = 215

    @property
    def minors(self) -> tuple[str, ...]:
        """The minor versions that the line covers."""
        return _MINORS[self]


_MINORS = {
    Line.V2_3: ("2.3",),
    Line.V2_4: ("2.4",),
    Line.V2_5: ("2.5", "2.6", "2.7"),
    Line.V2_8: ("2.8", "2.9", "2.10"),
    Line.V2_11: ("2.11",),
    Line.V2_12: ("2.12",),
    Line.V2_13: ("2.13",),
    Line.V2_14: ("2.14",),
    Line.V2_15: ("2.15",),
}
_BY_MINOR = {minor: line for line, minors in _MINORS.items() for minor in minors}


def line_of(version: str) -> Line:
    """The line of a torch version such as "2.9.1"."""
    return _BY_MINOR[".".join(version.split(".")[:2])]
