"""Keeps dynamo from compiling this package's own functions."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from torch._C._dynamo import eval_frame

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Result = TypeVar("_Result")


def eagerly(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """The function, out of dynamo's sight where a program is compiled but this part of it runs."""

    @uncompiled
    def run(*args: Any, **kwargs: Any) -> _Result:
        theirs = eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            eval_frame.set_eval_frame(theirs)

    return functools.update_wrapper(run, function)


def uncompiled(function: _Function) -> _Function:
    """The function itself, whose frame dynamo compiles no more; it may still trace into it."""
    code = function.__code__
    if hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)  # torch to 2.6
    else:
        this, below = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        strategy = eval_frame._FrameExecStrategy(this, below)
        eval_frame.set_code_exec_strategy(code, strategy)
    return function
