"""What a limit is: one shape bound of one of torch's CUDA attention kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Callable, Final, Literal, Optional

from packaging.specifiers import SpecifierSet

from .backends import Backend
from .call import Axis, Call
from .releases import RELEASES, RUNNING_TORCH, Release

Pass = Literal["forward", "backward", "forward+backward"]
Cure = Literal[Axis, "contiguous"]

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
BOTH: Final = "forward+backward"

_KNOWN = (*RELEASES, RUNNING_TORCH)


@dataclasses.dataclass(frozen=True)
class Limit:
    """One kernel's shape bound. ``dataclasses.replace(limit, bound=...)`` makes a lowered one.

    Raises ValueError for a bound under 1.

    >>> import dataclasses
    >>> from sdpa_guard import LIMITS
    >>> limit = next(limit for limit in LIMITS if limit.id == "F1")
    >>> print(limit, limit.bound, limit.releases)
    F1 (flash backward index) 2147483648 >=2.2, <2.11
    >>> lowered = dataclasses.replace(limit, bound=1000)
    """

    id: str
    #: What the id stands for: "flash backward index".
    name: str
    backend: Backend
    #: A backward bound needs a backward to matter.
    pass_: Pass
    #: What is counted: an expression in Python, or a description where that would take a page.
    formula: str
    #: Counts it for a call: a whole number.
    counted: Callable[[Call], int]
    #: The largest safe count.
    bound: int
    #: The axes whose split lowers the count, and "contiguous" where a copy of query, key or value
    #: does; empty where neither helps.
    cures: tuple[Cure, ...]
    #: The torch releases that have it.
    versions: SpecifierSet
    #: What happens past the bound.
    effect: str
    #: "measured", "source", "binary", "maintainer", "inferred": how it is known, strongest first.
    evidence: tuple[str, ...]
    #: Where that can be read.
    source: str
    #: The compute capability of the only GPUs that have it; None: all have it.
    capability: Optional[tuple[int, int]] = None
    _affected: tuple[Release, ...] = dataclasses.field(init=False, repr=False, compare=False)

    @property
    def releases(self) -> str:
        """``versions`` as a text: ">=2.2, <2.11"."""
        return ", ".join(sorted(map(str, self.versions), reverse=True))

    def __post_init__(self) -> None:
        if self.bound < 1:
            raise ValueError(f"bound must be 1 or more, not {self.bound!r}")
        object.__setattr__(self, "_affected", _affected(str(self.versions)))

    def affects(self, release: Release) -> bool:
        """Whether that torch release has the limit."""
        # Dynamo traces this, and a specifier set changes as it is used.
        if release in _KNOWN:
            return release in self._affected
        return self.versions.contains(str(release))

    def __str__(self) -> str:
        return f"{self.id} ({self.name})"


def on_gpu(limits: Iterable[Limit], capability: Optional[tuple[int, int]]) -> tuple[Limit, ...]:
    """The limits that a GPU of that compute capability has; None: those that all GPUs have."""
    return tuple([limit for limit in limits if limit.capability in (None, capability)])


@functools.cache
def _affected(versions: str) -> tuple[Release, ...]:
    specifiers = SpecifierSet(versions)
    return tuple(release for release in _KNOWN if specifiers.contains(str(release)))
