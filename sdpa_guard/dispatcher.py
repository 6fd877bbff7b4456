"""The process-wide door: ``enable`` and ``disable``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from . import compiled, kernel, scope
from .limit import Limit
from .limits import LIMITS
from .reports import Report
from .settings import Settings, make_settings

_last_report = Report()


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
    """End what ``enable`` began; nothing happens where the guard is not enabled.

    torch gets its own kernels back. While other threads are running, ours stay until a later
    ``disable`` or the end of a scope, and hand every call on.
    """
    _replace(None)


def is_enabled() -> bool:
    """Whether the process-wide guard is on."""
    return scope.process_wide is not None


def report() -> Report:
    """What the process-wide guard saw and split since it was last enabled."""
    return _last_report


def _replace(settings: Optional[Settings]) -> None:
    global _last_report
    with kernel.lock:
        before, scope.process_wide = scope.process_wide, settings
        if settings is not None:
            try:
                kernel.open_kernel(settings.device_types)
            except BaseException:  # a filter can make an error of its warning
                scope.process_wide = before
                kernel.close_kernel(settings.device_types)
                raise
            _last_report = settings.report
        if before is not None:
            kernel.close_kernel(before.device_types)
        kernel.remove_unused()
        compiled.key_all_caches(settings)
        compiled.key_caches(scope.in_force())
    if (before and before.token) != (settings and settings.token):
        compiled.forget()  # not under our lock: torch has one of its own
