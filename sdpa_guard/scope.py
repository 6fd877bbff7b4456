"""The settings in force on this thread.

They lie in torch's own thread-local stash, which the autograd engine carries to its threads:
Python's thread-local and context variables do not reach a backward on CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Optional

import torch

if TYPE_CHECKING:
    from .reroute import Settings

_KEY = "sdpa_guard"


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


def push(settings: Optional[Settings]) -> None:
    """Put settings in force on this thread."""
    torch._C._stash_obj_in_tls(_KEY, Scope(settings, current()))


def pop() -> None:
    """Put those in force again that the innermost scope hides."""
    scope = current()
    torch._C._stash_obj_in_tls(_KEY, scope.outer if scope else None)


@contextlib.contextmanager
def judged() -> Iterator[None]:
    """While a judged call runs: what it does inside is not judged again."""
    push(None)
    try:
        yield
    finally:
        pop()
