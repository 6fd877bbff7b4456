"""The user's line that made an attention call."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Optional

import torch

#: The folders of torch and of this package.
_LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (os.path.dirname(torch.__file__), Path(__file__).parents[1])
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclasses.dataclass(frozen=True)
class Site:
    """The line that made an attention call."""

    filename: str
    lineno: int
    #: The innermost line outside installed packages, when the call was made inside one.
    user: Optional[Site] = None

    def __str__(self) -> str:
        line = f"{self.filename}:{self.lineno}"
        return f"{line} (called from {self.user})" if self.user else line


def call_site() -> Site:
    """The innermost line of the running stack that belongs neither to torch nor to this package."""
    frame: Optional[FrameType] = sys._getframe(1)
    found: Optional[Site] = None
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((*_LIBRARIES, "<frozen")):
            site = Site(filename, frame.f_lineno)
            inside_package = any(part in filename for part in _INSTALLED)
            if found is None and not inside_package:
                return site
            if found is None:
                found = site
            elif not inside_package:
                return dataclasses.replace(found, user=site)
        frame = frame.f_back
    return found or Site("<unknown>", 0)
