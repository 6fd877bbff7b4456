"""Who judges a call: this thread's innermost scope, else the process-wide guard.

A thread's scopes lie in torch's own thread-local stash, which the autograd engine carries to its
threads: Python's thread-local and context variables do not reach a backward on CUDA.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Optional

from ..torch_private import is_stashed, stash, stashed
from .guard_memory import Memory
from .keep_eager import uncompiled

_KEY = "sdpa_guard"

#: The guard that ``enable`` put in force wherever no scope is open; None: nobody judges there.
process_wide: Optional[Memory] = None


class Scope(NamedTuple):
    """One open scope, and the one that it hides."""

    #: None: nobody judges calls here.
    memory: Optional[Memory]
    outer: Optional[Scope]
    #: What keeps our kernel in torch's dispatcher for this scope.
    hook: AbstractContextManager[object] = contextlib.nullcontext()


@uncompiled
def current() -> Optional[Scope]:
    """The innermost scope of this thread, or of the thread whose backward this one works for."""
    if not is_stashed(_KEY):
        return None
    scope: Optional[Scope] = stashed(_KEY)
    return scope


@uncompiled
def in_force() -> Optional[Memory]:
    """The guard that judges a call on this thread; None: nobody does."""
    innermost = current()
    return process_wide if innermost is None else innermost.memory


def all_open() -> Iterator[Memory]:
    """The guards of this thread's scopes, the innermost first."""
    innermost = current()
    while innermost is not None:
        if innermost.memory is not None:
            yield innermost.memory
        innermost = innermost.outer


class judged_by:  # noqa: N801 - reads as a function
    """While it is entered, the given scope is this thread's innermost one; None: no scope is.

    A call that was judged is made ``with judged_by(nobody())``, so that neither an outer guard nor
    our own kernel judges it again. What it calls on its way, in hooks or for a subclass, was not
    judged: our kernel runs it ``with judged_by(scope.outer)``.
    """

    def __init__(self, scope: Optional[Scope]) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._before = current()
        _put(self._scope)

    def __exit__(self, *exc_info: object) -> None:
        _put(self._before)


def nobody() -> Scope:
    """The scope in which the guard makes a call that it has judged."""
    return Scope(None, current())


def enter(memory: Memory, hook: AbstractContextManager[object]) -> None:
    """Let the guard judge this thread's calls."""
    if threading.current_thread() is not threading.main_thread():
        _threads.add(threading.get_native_id())
    _put(Scope(memory, current(), hook))


def leave(memory: Memory) -> Optional[Scope]:
    """Close the guard's innermost scope on this thread, so that the scope around it judges again.

    Returns the closed scope, or None where the guard has none on this thread.
    """
    scope = current()
    while scope is not None and scope.memory is not memory:
        scope = scope.outer
    if scope is not None:
        _put(scope.outer)
    return scope


def _put(scope: Optional[Scope]) -> None:
    if _stash_steals():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(scope))
    stash(_KEY, scope)


@functools.cache
def _stash_steals() -> bool:
    """Whether torch's stash takes no reference of its own, as in releases up to 2.9."""
    probe = object()
    before = sys.getrefcount(probe)
    found = current()
    stash(_KEY, probe)
    steals = sys.getrefcount(probe) == before
    for taken in (probe, found) if steals else ():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(taken))
    stash(_KEY, found)
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
