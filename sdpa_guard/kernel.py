"""Our kernel for SDPA in torch's dispatcher, before torch's own: it sees what no mode sees."""

from __future__ import annotations

import collections
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch

from . import scope
from .dynamo import eagerly, uncompiled
from .errors import SDPAGuardWarning
from .reports import call_site
from .reroute import reroute
from .settings import Settings

_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
_call = _OPERATOR._op_dk
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

Recorder = Callable[[tuple[Any, ...], dict[str, Any]], None]
#: Told of every call that reaches torch while the kernel is open.
recorders: list[Recorder] = []

lock = threading.RLock()
# A child forked while another thread holds the lock would wait for it forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )

#: Our registration for each of torch's keys.
_registered: dict[str, torch.library.Library] = {}
#: The keys that we would need and somebody else holds.
foreign_keys: set[str] = set()
#: How many need the kernel at each key.
_users: collections.Counter[str] = collections.Counter()


def open_kernel(device_types: tuple[str, ...]) -> None:
    """Put the kernel before torch's own; pair every call with ``close_kernel``."""
    with lock:
        _users.update(_keys(device_types))
        for key in _keys(device_types):
            if key not in _registered and key not in foreign_keys:
                _register(key)


def close_kernel(device_types: tuple[str, ...]) -> None:
    """Say that the kernel is no longer needed here."""
    with lock:
        _users.subtract(_keys(device_types))
        remove_unused()


def remove_unused() -> None:
    """Give torch its own kernels back where nobody needs ours, if no other thread is running.

    One could be about to enter it, and torch frees a kernel at once. It stays then until a later
    call, and hands everything on.
    """
    with lock:
        alone = threading.active_count() == 1
        foreign_keys.difference_update([key for key in foreign_keys if not _users[key]])
        for key in [key for key in _registered if not _users[key] and alone]:
            _registered.pop(key)._destroy()
            _OPERATOR._dispatch_cache.clear()


def _keys(device_types: tuple[str, ...]) -> Iterator[str]:
    """torch's autograd key for each device type, and the plain one that inference mode uses."""
    for device_type in device_types:
        backend = "Meta" if device_type == "meta" else device_type.upper()
        yield f"Autograd{backend}"
        if device_type != "meta":  # torch allows no plain Meta kernel here
            yield backend


def _register(key: str) -> None:
    library = torch.library.Library("aten", "IMPL")
    try:
        # torch from 2.10 on would let us take its place.
        if torch._C._dispatch_has_kernel_for_dispatch_key(_OPERATOR.name(), key):
            raise RuntimeError("there is a kernel already")
        library.impl("scaled_dot_product_attention", _kernel, key)
    except RuntimeError as refusal:
        foreign_keys.add(key)
        site = call_site()
        message = (
            f"another library has its own attention kernel for {key}, so sdpa_guard sees only "
            f"direct calls there: none inside modules, recompute or backward. torch says: {refusal}"
        )
        warnings.warn_explicit(message, SDPAGuardWarning, site.filename, site.lineno)
        return
    # torch.compile dispatches by this cache, which no registration renews.
    _OPERATOR._dispatch_cache.clear()
    _registered[key] = library


@uncompiled
def _kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    if torch._C._len_torch_function_stack():
        # C++ code, such as a script's, made the call past all modes: so do we, ours included.
        with torch._C.DisableTorchFunction():
            return _see(args, kwargs)
    return _see(args, kwargs)


@uncompiled
def _see(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    innermost = scope.current()
    settings = scope.process_wide if innermost is None else innermost.settings
    if settings is None:
        return _pass(innermost, args, kwargs)
    if settings.recognises(args, kwargs):
        return torch_kernel(*args, **kwargs)
    return _judge(settings, args, kwargs)


@uncompiled
def torch_kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    """torch's own kernel at once: the operator would lead back here."""
    for recorder in recorders:
        recorder(args, kwargs)
    result: torch.Tensor = _call(_COMPOSITE, *args, **kwargs)
    return result


@eagerly
def _judge(settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return reroute(torch_kernel, args, kwargs, settings)


@eagerly
def _pass(
    innermost: Optional[scope.Scope], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    if innermost is None:
        return torch_kernel(*args, **kwargs)
    # This one was judged; what it calls on its way, in hooks or for a subclass, was not.
    try:
        scope.put(innermost.outer)
        return torch_kernel(*args, **kwargs)
    finally:
        scope.put(innermost)
