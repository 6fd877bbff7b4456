"""The settings in force: those of this thread's innermost scope, else the process-wide ones.

A thread's lie in torch's own thread-local stash, which the autograd engine carries to its threads:
Python's thread-local and context variables do not reach a backward on CUDA.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple, Optional

import torch

from .dynamo import uncompiled
from .settings import Settings

_KEY = "sdpa_guard"

#: The settings that ``enable`` put in force wherever no scope is open.
process_wide: Optional[Settings] = None


class Scope(NamedTuple):
    """One open scope, and the one that it hides."""

    #: None while a call that was judged is on its way through torch.
    settings: Optional[Settings]
    outer: Optional[Scope]


@uncompiled
def current() -> Optional[Scope]:
    """The innermost scope of this thread, or of the thread whose backward this one works for."""
    if not torch._C._is_key_in_tls(_KEY):
        return None
    scope: Optional[Scope] = torch._C._get_obj_in_tls(_KEY)
    return scope


@uncompiled
def in_force() -> Optional[Settings]:
    """The settings to judge a call on this thread by; None where it is to be left alone."""
    innermost = current()
    return process_wide if innermost is None else innermost.settings


def all_open() -> Iterator[Settings]:
    """The settings of this thread's scopes, the innermost first."""
    innermost = current()
    while innermost is not None:
        if innermost.settings is not None:
            yield innermost.settings
        innermost = innermost.outer


def put(scope: Optional[Scope]) -> None:
    """Make it the innermost scope of this thread; None: no scope is open."""
    if _stash_steals():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(scope))
    torch._C._stash_obj_in_tls(_KEY, scope)


def enter(settings: Settings) -> None:
    """Put settings in force on this thread."""
    if threading.current_thread() is not threading.main_thread():
        _threads.add(threading.get_native_id())
    put(Scope(settings, current()))


def leave(settings: Settings) -> None:
    """Put those in force again that the innermost scope of these settings hides."""
    scope = current()
    while scope is not None and scope.settings is not settings:
        scope = scope.outer
    if scope is not None:
        put(scope.outer)


@functools.cache
def _stash_steals() -> bool:
    """Whether torch's stash takes over a reference that nobody gave it, as releases to 2.9 do."""
    probe = object()
    before = sys.getrefcount(probe)
    found = current()
    torch._C._stash_obj_in_tls(_KEY, probe)
    steals = sys.getrefcount(probe) == before
    for taken in (probe, found) if steals else ():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(taken))
    torch._C._stash_obj_in_tls(_KEY, found)
    return steals


#: The threads, by their number in the system, that had a scope.
_threads: set[int] = set()


@atexit.register
def _outlive_threads() -> None:
    """Wait for them: torch drops a thread's stash as its very last act, and needs Python for it."""
    if not _threads:
        return
    time.sleep(0.01)  # where the system cannot be asked
    last = time.monotonic() + 0.5
    while any(os.path.exists(f"/proc/self/task/{thread}") for thread in _threads):
        if time.monotonic() > last:
            break
        time.sleep(0.001)
