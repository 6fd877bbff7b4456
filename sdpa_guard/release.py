"""The torch releases that the limits speak of."""

from __future__ import annotations

from typing import Optional

import torch
from packaging.version import InvalidVersion, Version

#: The torch releases that this package supports, by their minor version, oldest first.
RELEASES = tuple(Version(f"2.{minor}.0") for minor in range(3, 15))
#: The release of the torch that runs, without local or pre-release parts.
RUNNING_TORCH = Version(Version(torch.__version__).base_version)


def parse_release(torch_version: Optional[str]) -> Optional[Version]:
    """The release named by a string such as ``"2.9.0"`` or ``"2.9.1+cu128"``."""
    if torch_version is None:
        return None
    if not isinstance(torch_version, str):
        raise TypeError(f"torch_version must be a string such as '2.9.0', not {torch_version!r}")
    try:
        release = Version(Version(torch_version).base_version)
    except InvalidVersion:
        raise ValueError(
            f"torch_version must be a release such as '2.9.0', not {torch_version!r}"
        ) from None
    if release < RELEASES[0]:
        oldest = RELEASES[0]
        raise ValueError(f"torch_version must be {oldest} or later, not {torch_version!r}")
    return release
