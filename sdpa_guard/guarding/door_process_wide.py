"""The process-wide door: ``enable`` and ``disable``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from .. import torch_private
from ..limits.limit import Limit
from ..limits.registry import LIMITS
from . import compile_caches, dispatcher_hook, open_scopes
from .guard_memory import Memory
from .ledger import Ledger
from .options import JUDGED, DeviceType, Options, Policy, make_options
from .report import Report

_last_report = Report(Ledger())
#: What keeps our kernel in torch's dispatcher while the guard is enabled.
_hook = dispatcher_hook.Hook(())


def enable(
    policy: Policy = "split",
    *,
    limits: Iterable[Limit] = LIMITS,
    torch_version: Optional[str] = None,
    device_types: Sequence[DeviceType] = JUDGED,
) -> None:
    """Guard every attention call of this process, in all threads, until ``disable``.

    Where a scope is open, its settings win. Enabling again replaces the settings and begins a new
    :func:`report`. Code that torch compiled before is compiled anew.

    Args:
        policy: ``"split"``, ``"warn"`` or ``"raise"``, as for :class:`SDPAGuard`.
        limits: the limits that count; ``LIMITS`` unless you test with lowered ones.
        torch_version: a release such as ``"2.9.0"``, whose limits count everywhere. None: on CUDA
            those of the torch that runs, on meta and fake tensors those of every supported one.
        device_types: the devices whose calls are judged as CUDA calls, of "cpu", "cuda", "meta".

    Raises:
        ValueError, TypeError: an argument is not what is allowed; the message says what is.
        SDPAGuardError: the running torch lacks what the guard needs; the message names it.

    >>> import sdpa_guard
    >>> sdpa_guard.enable("warn")
    >>> sdpa_guard.is_enabled()
    True
    >>> sdpa_guard.disable()
    """
    _replace(Memory(make_options(policy, limits, torch_version, device_types)))


def disable() -> None:
    """End what ``enable`` began; nothing happens where the guard is not enabled.

    torch gets its own kernels back. While other threads are running, ours stay until a later
    ``disable`` or the end of a scope, and hand every call on.

    >>> import sdpa_guard
    >>> sdpa_guard.disable()
    """
    if not torch_private.MISSING:  # nothing can have been enabled without those names
        _replace(None)


def is_enabled() -> bool:
    """Whether the process-wide guard is on.

    Returns:
        True from ``enable`` (or ``SDPA_GUARD``) until ``disable``; open scopes do not count.

    >>> import sdpa_guard
    >>> sdpa_guard.is_enabled()
    False
    """
    return open_scopes.process_wide is not None


def report() -> Report:
    """What the process-wide guard saw and split since it was last enabled.

    Returns:
        The report that goes on counting until the guard is enabled again.

    >>> import sdpa_guard
    >>> sdpa_guard.enable()
    >>> print(sdpa_guard.report())
    sdpa_guard: 0 attention calls, 0 split into 0 chunks, 0 unsplittable
    >>> sdpa_guard.disable()
    """
    return _last_report


def _replace(memory: Optional[Memory]) -> None:
    global _hook, _last_report
    with dispatcher_hook.lock:
        hook = dispatcher_hook.Hook(() if memory is None else memory.options.device_types)
        before, open_scopes.process_wide = open_scopes.process_wide, memory
        try:
            hook.__enter__()
        except BaseException:
            open_scopes.process_wide = before
            raise
        _hook.__exit__()
        _hook = hook
        if memory is not None:
            _last_report = Report(memory.ledger)
        dispatcher_hook.remove_unused()
        compile_caches.key_all_caches(_options(memory))
        compile_caches.key_caches(_options(open_scopes.in_force()))
    if _token(before) != _token(memory):
        compile_caches.forget()  # not under our lock: torch has one of its own


def _options(memory: Optional[Memory]) -> Optional[Options]:
    return None if memory is None else memory.options


def _token(memory: Optional[Memory]) -> Optional[str]:
    return None if memory is None else memory.options.token
