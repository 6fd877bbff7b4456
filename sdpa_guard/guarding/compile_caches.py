"""Makes torch compile anew what it compiled under other options."""

from __future__ import annotations

import sys
import threading
import warnings
from types import FrameType
from typing import Optional

import torch

from ..errors import SDPAGuardWarning
from ..torch_private import (
    COMPILERS_FILES,
    cache_settings,
    compiler_is_loaded,
    default_cache_tag,
)
from .call_site import call_site
from .options import Options

_MARK = " sdpa_guard:"


def key_caches(options: Optional[Options]) -> None:
    """Key what this thread compiles, in torch's caches on disk, by the options in force on it.

    torch looks code up by the graph as it is before a call is split, so the options must be part of
    the key. From 2.13 on each thread has its own settings. None: nobody judges calls here.
    """
    if cache_settings is not None:
        cache_settings.cache_key_tag = _marked(cache_settings.cache_key_tag, options)


def key_all_caches(options: Optional[Options]) -> None:
    """The same for the threads to come, and for those that never had a key of their own."""
    for tag, put in default_cache_tag():
        put(_marked(tag, options))


def forget() -> None:
    """Let go of the code that this process has compiled so far.

    torch cannot drop code while another thread is in it: then it stays, and a warning says so.
    """
    if not compiler_is_loaded():
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
            if frame.f_code.co_filename in COMPILERS_FILES:
                return True
            frame = frame.f_back
    return False


def _marked(tag: str, options: Optional[Options]) -> str:
    theirs = tag.partition(_MARK)[0]
    return theirs if options is None else f"{theirs}{_MARK}{options.token}"
