"""The guard beside ``torch.compile``.

Code compiled under other settings is compiled anew, not found again, and our own is not compiled.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType
from typing import Any, Callable, Optional, TypeVar

import torch
from torch._C._dynamo import eval_frame

from .settings import Settings

_Result = TypeVar("_Result")

_MARK = " sdpa_guard:"
_CONFIG: Any = getattr(torch.compiler, "config", None)


def key_caches(settings: Optional[Settings]) -> None:
    """Key what this thread compiles, in torch's caches on disk, by the settings in force on it.

    torch looks code up by the graph that it has before our kernel splits a call. From 2.13 on its
    settings are each thread's own.
    """
    if hasattr(_CONFIG, "cache_key_tag"):
        _CONFIG.cache_key_tag = _marked(_CONFIG.cache_key_tag, settings)


def key_all_caches(settings: Optional[Settings]) -> None:
    """The same for the threads to come, and for those that never had a key of their own."""
    entry = getattr(_CONFIG, "_config", {}).get("cache_key_tag")
    for field in ("default", "env_value_default"):
        theirs = getattr(entry, field, None)
        if isinstance(theirs, str):
            setattr(entry, field, _marked(theirs, settings))


def forget() -> None:
    """Let go of the code that this process has compiled so far."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def eagerly(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """The function, out of dynamo's sight where a program is compiled but this part of it runs."""

    def run(*args: Any, **kwargs: Any) -> _Result:
        theirs = eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            eval_frame.set_eval_frame(theirs)

    do_not_compile(run.__code__)
    return functools.update_wrapper(run, function)


def do_not_compile(code: CodeType) -> None:
    """Keep dynamo from compiling a frame of this code; it may still trace into it."""
    if hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)  # torch to 2.6
    else:
        this, below = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        strategy = eval_frame._FrameExecStrategy(this, below)
        eval_frame.set_code_exec_strategy(code, strategy)


def _marked(tag: str, settings: Optional[Settings]) -> str:
    theirs = tag.partition(_MARK)[0]
    return theirs if settings is None else f"{theirs}{_MARK}{settings.token}"
