"""The settings in force: those of this thread's innermost scope, else the process-wide ones.

A thread's lie in torch's own thread-local stash, which the autograd engine carries to its threads:
Python's thread-local and context variables do not reach a backward on CUDA.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import NamedTuple, Optional

import torch

from .settings import Settings

_KEY = "sdpa_guard"

#: The settings that ``enable`` put in force wherever no scope is open.
process_wide: Optional[Settings] = None


class Scope(NamedTuple):
    """One open scope, and the one that it hides."""

    #: None while a call that was judged is on its way through torch.
    settings: Optional[Settings]
    outer: Optional[Scope]


def current() -> Optional[Scope]:
    """The innermost scope of this thread, or of the thread whose backward this one works for."""
    if not torch._C._is_key_in_tls(_KEY):
        return None
    scope: Optional[Scope] = torch._C._get_obj_in_tls(_KEY)
    return scope


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


def push(settings: Optional[Settings]) -> None:
    """Put settings in force on this thread; None while a judged call runs, to judge it once."""
    _stash(Scope(settings, current()))


def pop() -> None:
    """Put those in force again that the innermost scope hides."""
    scope = current()
    _stash(scope.outer if scope else None)


def _stash(scope: Optional[Scope]) -> None:
    if _STASH_STEALS:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(scope))
    torch._C._stash_obj_in_tls(_KEY, scope)


def _stash_steals() -> bool:
    """Whether torch's stash takes over a reference that nobody gave it, as releases to 2.9 do."""
    probe = object()
    before = sys.getrefcount(probe)
    torch._C._stash_obj_in_tls(_KEY, probe)
    steals = sys.getrefcount(probe) == before
    if steals:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return steals


_STASH_STEALS = _stash_steals()
_stash(None)
