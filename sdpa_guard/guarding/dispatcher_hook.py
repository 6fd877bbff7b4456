"""What torch's dispatcher calls for SDPA before torch's own kernel: it sees what no mode sees."""

from __future__ import annotations

import collections
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch

from .. import torch_private
from ..errors import SDPAGuardWarning
from ..torch_private import COMPOSITE, SDPA, PastFunctionModes, call_at, function_modes
from . import fork_safe, open_scopes
from .call_site import call_site
from .guard_memory import Memory
from .guarded_call import attend
from .keep_eager import eagerly, uncompiled

Recorder = Callable[[tuple[Any, ...], dict[str, Any]], None]
#: Functions that are called with every call that reaches torch while the hook is open.
recorders: list[Recorder] = []

lock = fork_safe.lock()

#: Our registration for each of torch's keys.
_registered: dict[str, torch.library.Library] = {}
#: The keys that we need and another library holds.
foreign_keys: set[str] = set()
#: How many open hooks need each key.
_users: collections.Counter[str] = collections.Counter()


class Hook:
    """Keeps our kernel in the dispatcher for the calls on some devices, while it is entered.

    Raises MissingNameError, or the warning where a filter makes it an error; it is closed then.
    """

    def __init__(self, device_types: tuple[str, ...]) -> None:
        self._keys = tuple(_keys(device_types))
        self._is_open = False

    def __enter__(self) -> Hook:
        if self._keys:
            torch_private.need_all()
        with lock:
            self._is_open = True
            _users.update(self._keys)
            try:
                for key in self._keys:
                    if key not in _registered and key not in foreign_keys:
                        _register(key)
            except BaseException:  # a filter can make an error of its warning
                self.__exit__()
                raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Say that our kernel is no longer needed here; only the first call does anything."""
        with lock:
            if self._is_open:
                self._is_open = False
                _users.subtract(self._keys)
                remove_unused()


def remove_unused() -> None:
    """Give torch its own kernels back where nobody needs ours, if no other thread is running.

    Another thread could be about to enter our kernel, which torch frees at once. The kernel then
    stays until a later call, and hands everything on.
    """
    with lock:
        alone = threading.active_count() == 1
        foreign_keys.difference_update([key for key in foreign_keys if not _users[key]])
        for key in [key for key in _registered if not _users[key] and alone]:
            torch_private.destroy_library(_registered.pop(key))
            torch_private.dispatch_cache.clear()


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
        # torch from 2.10 on would replace the other library's kernel silently.
        if torch_private.has_kernel(SDPA.name(), key):
            raise RuntimeError("there is a kernel already")
        library.impl("scaled_dot_product_attention", _kernel, key)
    except RuntimeError as refusal:
        foreign_keys.add(key)
        site = call_site()
        message = (
            f"another library has its own attention kernel for {key}, so sdpa_guard sees only "
            "direct calls there, not those inside modules, recompute or backward. torch says: "
            f"{refusal}"
        )
        warnings.warn_explicit(message, SDPAGuardWarning, site.filename, site.lineno)
        return
    torch_private.dispatch_cache.clear()
    _registered[key] = library


@uncompiled
def _kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    if function_modes():
        # C++ code, such as a script's, made the call past all modes, so we pass them too.
        with PastFunctionModes():
            return _see(args, kwargs)
    return _see(args, kwargs)


@uncompiled
def _see(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    innermost = open_scopes.current()
    memory = open_scopes.process_wide if innermost is None else innermost.memory
    if memory is None:
        return _hand_on(innermost, args, kwargs)
    if memory.recognises(args, kwargs):
        return torch_kernel(*args, **kwargs)
    return _attend(memory, args, kwargs)


@uncompiled
def torch_kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Call torch's own kernel directly: the operator would enter ours again."""
    for recorder in recorders:
        recorder(args, kwargs)
    result: torch.Tensor = call_at(COMPOSITE, *args, **kwargs)
    return result


@eagerly
def _attend(memory: Memory, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return attend(torch_kernel, args, kwargs, memory)


@eagerly
def _hand_on(
    innermost: Optional[open_scopes.Scope], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    if innermost is None:
        return torch_kernel(*args, **kwargs)
    with open_scopes.judged_by(innermost.outer):
        return torch_kernel(*args, **kwargs)
