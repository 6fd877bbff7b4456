"""A kernel of our own for SDPA in torch's dispatcher: it sees what a function mode does not."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch

from . import scope
from .errors import SDPAGuardWarning
from .report import call_site
from .reroute import reroute

_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

_lock = threading.RLock()
#: Each open key's registration, and how many have asked for it. None: somebody else holds the key.
_open: dict[str, tuple[Optional[torch.library.Library], int]] = {}

Recorder = Callable[[tuple[Any, ...], dict[str, Any]], None]
#: Told of every call that reaches torch while the kernel is open.
recorders: list[Recorder] = []


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


def _kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    innermost = scope.current()
    if innermost is None or innermost.settings is None:
        return _torch_kernel(*args, **kwargs)
    return reroute(_torch_kernel, args, kwargs, innermost.settings)


def _torch_kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    for recorder in recorders:
        recorder(args, kwargs)
    # The composite kernel directly: calling the operator would lead back here.
    result: torch.Tensor = _OPERATOR._op_dk(_COMPOSITE, *args, **kwargs)
    return result
