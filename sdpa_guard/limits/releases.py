"""The torch releases that the limits speak of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from packaging.version import Version


class Release(NamedTuple):
    """One torch release, without local and pre-release parts."""

    major: int
    minor: int
    micro: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.micro}"


def _release(version: str) -> Release:
    return Release(*Version(version).release[:3])


#: The torch releases that this package supports, by their minor version, oldest first.
RELEASES = tuple(Release(2, minor) for minor in range(3, 15))
#: The newest release whose kernels were read; what a later one fixed is not known.
NEWEST_READ = Release(2, 15)
#: The release of the torch that runs.
RUNNING_TORCH = _release(torch.__version__)


def parse_release(torch_version: str) -> Release:
    """The release named by a string such as ``"2.9.0"`` or ``"2.9.1+cu128"``.

    Raises:
        ValueError, TypeError: it names no release, or one before the oldest supported.
    """
    if not isinstance(torch_version, str):
        raise TypeError(f"torch_version must be a string such as '2.9.0', not {torch_version!r}")
    try:
        release = _release(torch_version)
    except (ValueError, TypeError):  # InvalidVersion, or too many digits for Python
        raise ValueError(
            f"torch_version must be a release such as '2.9.0', not {torch_version!r}"
        ) from None
    if release < RELEASES[0]:
        oldest = RELEASES[0]
        raise ValueError(f"torch_version must be {oldest} or later, not {torch_version!r}")
    return release


def name_of(releases: tuple[Release, ...]) -> str:
    """The releases that a call is judged by: one, or all that are supported."""
    if len(releases) > 1:
        return "any supported torch"
    return f"torch {releases[0]}{unread(releases[0])}"


def unread(release: Release) -> str:
    """What to add to the name of a release whose kernels nobody has read yet."""
    if release[:2] <= NEWEST_READ[:2]:
        return ""
    return " (not read yet: every limit without a known fix counts)"
