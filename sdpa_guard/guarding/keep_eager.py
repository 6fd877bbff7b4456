"""Keeps dynamo from compiling this package's own functions."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from .. import torch_private

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Result = TypeVar("_Result")


def eagerly(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """The function, which dynamo does not see where it runs eagerly in a compiled program."""

    @uncompiled
    def run(*args: Any, **kwargs: Any) -> _Result:
        theirs = torch_private.set_frame_callback(None)
        try:
            return function(*args, **kwargs)
        finally:
            torch_private.set_frame_callback(theirs)

    return functools.update_wrapper(run, function)


def uncompiled(function: _Function) -> _Function:
    """The function itself, whose frame dynamo never compiles; it may still trace into it."""
    torch_private.skip_frames_of(function.__code__)
    return function
