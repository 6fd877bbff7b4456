"""What a limit is: one shape bound of one of torch's CUDA attention kernels."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable

from packaging.specifiers import SpecifierSet

from .call import Call
from .release import RELEASES, RUNNING_TORCH, Release

_KNOWN = (*RELEASES, RUNNING_TORCH)

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"


@dataclasses.dataclass(frozen=True)
class Limit:
    """One kernel's shape bound. ``dataclasses.replace(limit, bound=...)`` makes a lowered one."""

    id: str
    #: The id in words.
    name: str
    #: "flash", "efficient" or "cudnn".
    backend: str
    #: "forward", "backward" or "forward+backward"; a backward bound needs a backward to matter.
    pass_: str
    #: What is counted, in the words of the field.
    formula: str
    counted: Callable[[Call], int]
    #: The largest safe count.
    bound: int
    #: The axes whose split lowers the count, and "contiguous" where a copy of key and value does.
    cures: tuple[str, ...]
    #: The torch releases that have it.
    versions: SpecifierSet
    #: What happens past the bound.
    effect: str
    #: "measured", "source", "binary", "maintainer", "inferred": how it is known, strongest first.
    evidence: tuple[str, ...]
    #: Where that can be read.
    source: str
    _affected: tuple[Release, ...] = dataclasses.field(init=False, repr=False, compare=False)

    @property
    def releases(self) -> str:
        """``versions`` in words: ">=2.2, <2.11"."""
        return ", ".join(sorted(map(str, self.versions), reverse=True))

    def __post_init__(self) -> None:
        if self.bound < 1:
            raise ValueError(f"bound must be 1 or more, not {self.bound!r}")
        object.__setattr__(self, "_affected", _affected(str(self.versions)))

    def affects(self, release: Release) -> bool:
        """Whether that torch release has the limit."""
        # What can be known before is: dynamo traces this, and a specifier set changes as it is used
        if release in _KNOWN:
            return release in self._affected
        return self.versions.contains(str(release))

    def __str__(self) -> str:
        return f"{self.id} ({self.name})"


@functools.cache
def _affected(versions: str) -> tuple[Release, ...]:
    specifiers = SpecifierSet(versions)
    return tuple(release for release in _KNOWN if specifiers.contains(str(release)))
