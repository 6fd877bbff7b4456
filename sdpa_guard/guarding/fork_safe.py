"""Locks that a forked child can take."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Optional, Protocol


class Lock(Protocol):
    """What ``threading.Lock()`` and ``threading.RLock()`` return."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...


def lock() -> Lock:
    """A lock that its own thread may take again."""
    made = threading.RLock()
    # A child forked while another thread holds the lock would wait for it forever.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=made.acquire, after_in_parent=made.release, after_in_child=made.release
        )
    return made
