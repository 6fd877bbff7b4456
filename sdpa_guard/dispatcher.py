"""The process-wide door: a kernel of our own for SDPA in torch's dispatcher.

It is open while the guard is enabled, and while a scope is: it sees what a function mode does not.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import torch

from . import compiled, scope
from .errors import SDPAGuardWarning
from .limit import Limit
from .limits import LIMITS
from .reports import Report, call_site
from .reroute import reroute
from .settings import Settings, make_settings

_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

_lock = threading.RLock()
#: Each open key's registration, and how many have asked for it. None: somebody else holds the key.
_open: dict[str, tuple[Optional[torch.library.Library], int]] = {}

Recorder = Callable[[tuple[Any, ...], dict[str, Any]], None]
#: Told of every call that reaches torch while the kernel is open.
recorders: list[Recorder] = []
_last_report = Report()

# A child forked while another thread holds the lock would wait for it forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def enable(
    policy: str = "split",
    *,
    limits: Iterable[Limit] = LIMITS,
    torch_version: Optional[str] = None,
    device_types: Sequence[str] = ("cuda", "meta"),
) -> None:
    """Guard every attention call of this process, in all threads, until ``disable``.

    Takes the arguments of :class:`SDPAGuard` and raises what it raises. Where a scope is open, its
    settings win. Enabling again replaces the settings and begins a new :func:`report`. Code that
    torch compiled before is compiled anew.
    """
    _replace(make_settings(policy, limits, torch_version, device_types))


def disable() -> None:
    """Give torch its own kernels back; nothing happens where the guard is not enabled."""
    _replace(None)


def is_enabled() -> bool:
    """Whether the process-wide guard is on."""
    return scope.process_wide is not None


def report() -> Report:
    """What the process-wide guard saw and split since it was last enabled."""
    return _last_report


def _replace(settings: Optional[Settings]) -> None:
    global _last_report
    with _lock:
        before, scope.process_wide = scope.process_wide, settings
        if settings is not None:
            _last_report = settings.report
            open_kernel(settings.device_types)
        if before is not None:
            close_kernel(before.device_types)
        compiled.key_all_caches(settings)
        compiled.key_caches(scope.in_force())
    if (before and before.token) != (settings and settings.token):
        compiled.forget()  # not under our lock: torch has one of its own


def open_kernel(device_types: tuple[str, ...]) -> None:
    """Put the kernel before torch's own; pair every call with ``close_kernel``."""
    with _lock:
        for key in _keys(device_types):
            library, users = _open[key] if key in _open else (_register(key), 0)
            _open[key] = library, users + 1


def close_kernel(device_types: tuple[str, ...]) -> None:
    """Take the kernel away again once nobody needs it."""
    with _lock:
        for key in _keys(device_types):
            library, users = _open.pop(key)
            if users > 1:
                _open[key] = library, users - 1
            elif library is not None:
                library._destroy()


def _keys(device_types: tuple[str, ...]) -> Iterator[str]:
    """torch's autograd key for each device type, and the plain one that inference mode uses."""
    for device_type in device_types:
        backend = "Meta" if device_type == "meta" else device_type.upper()
        yield f"Autograd{backend}"
        if device_type != "meta":  # torch allows no plain Meta kernel here
            yield backend


def _register(key: str) -> Optional[torch.library.Library]:
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("scaled_dot_product_attention", _kernel, key)
    except RuntimeError as refusal:
        # torch to 2.9 lets nobody replace a Python kernel of somebody else's.
        site = call_site()
        message = (
            f"another library has its own attention kernel for {key}, so sdpa_guard sees only "
            f"direct calls there: none inside modules, recompute or backward. torch says: {refusal}"
        )
        warnings.warn_explicit(message, SDPAGuardWarning, site.filename, site.lineno)
        return None
    return library


@compiled.eagerly
def _kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    settings = scope.in_force()
    if settings is None:
        return _torch_kernel(*args, **kwargs)
    return reroute(_torch_kernel, args, kwargs, settings)


def _torch_kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    for recorder in recorders:
        recorder(args, kwargs)
    # The composite kernel directly: calling the operator would lead back here.
    result: torch.Tensor = _OPERATOR._op_dk(_COMPOSITE, *args, **kwargs)
    return result
