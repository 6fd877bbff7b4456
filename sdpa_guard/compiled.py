"""What torch compiled under other settings: it is compiled anew, and not found again."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from types import FrameType
from typing import Any, Optional

import torch

from .errors import SDPAGuardWarning
from .reports import call_site
from .settings import Settings

#: Whoever compiles, or calls compiled code, has a frame of one of these on its stack.
_COMPILERS_FILES = frozenset(
    os.path.join(os.path.dirname(torch.__file__), "_dynamo", name)
    for name in ("eval_frame.py", "convert_frame.py")
)
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
    """Let go of the code that this process has compiled so far.

    Not while another thread is in it, which torch does not bear; that is said in a warning.
    """
    if "torch._dynamo" not in sys.modules:
        return
    if _other_threads_compile_or_run_compiled():
        site = call_site()
        message = (
            "another thread is compiling or in compiled code, so what torch compiled before stays "
            "as it is: enable and disable sdpa_guard before, or call torch.compiler.reset() later"
        )
        warnings.warn_explicit(message, SDPAGuardWarning, site.filename, site.lineno)
        return
    torch.compiler.reset()


def _other_threads_compile_or_run_compiled() -> bool:
    ours = threading.get_ident()
    for thread, innermost in sys._current_frames().items():
        frame: Optional[FrameType] = innermost
        while frame is not None and thread != ours:
            if frame.f_code.co_filename in _COMPILERS_FILES:
                return True
            frame = frame.f_back
    return False


def _marked(tag: str, settings: Optional[Settings]) -> str:
    theirs = tag.partition(_MARK)[0]
    return theirs if settings is None else f"{theirs}{_MARK}{settings.token}"
