"""What a guard was asked to do, and what it keeps while it does it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Optional

import torch

from .call import Call
from .dynamo import uncompiled
from .errors import SDPAGuardWarning, check_names
from .judge import Finding, examine, exceeded, remedy
from .limit import Limit
from .plan import Plan
from .release import Release, parse_release
from .reports import Report, Site
from .signature import signature

POLICIES = ("split", "warn", "raise")
#: The device types whose calls can be judged as CUDA calls.
DEVICE_TYPES = ("cpu", "cuda", "meta")
#: Calls that a guard remembers; a run with ever new shapes must not fill the memory.
_MOST = 4096


class Settings:
    """One guard's settings, its report, and what it remembers."""

    def __init__(
        self,
        policy: str,
        limits: tuple[Limit, ...],
        release: Optional[Release],
        device_types: tuple[str, ...],
    ) -> None:
        self.policy = policy
        self.limits = limits
        #: The torch release whose limits count; None leaves it to the device.
        self.release = release
        self.device_types = device_types
        #: Equal for equal settings, also in other processes.
        self.token = _token(policy, limits, release, device_types)
        self.report = Report()
        #: The signatures of calls that were inside every bound.
        self._trusted: set[Hashable] = set()
        self._warned: set[object] = set()
        self._remembered = functools.lru_cache(maxsize=_MOST)(self._measure)
        #: The plan for the limits of some backends, remembered by the call's facts.
        self.plan = functools.lru_cache(maxsize=_MOST)(self._plan)

    @uncompiled
    def recognises(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Count a call that was inside every bound before; say of any other that it is none."""
        try:
            if signature(args, kwargs) not in self._trusted:
                return False
        except TypeError:
            return False  # symbolic sizes
        self.report.saw()
        return True

    def trust(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Recognise such calls from now on."""
        seen = signature(args, kwargs)
        if seen is None:
            return
        if len(self._trusted) >= _MOST:
            self._trusted.clear()
        with contextlib.suppress(TypeError):
            self._trusted.add(seen)

    def beyond(self, call: Call, release: Optional[Release]) -> list[Finding]:
        """The limits that the call is over, whichever backend takes it; remembered by its facts."""
        try:
            return self._remembered(call, release)
        except TypeError:  # symbolic sizes have no hash
            return exceeded(call, self.limits, release)

    def examined(self, call: Call, release: Optional[Release]) -> tuple[Finding, ...]:
        """Every limit that the call could meet."""
        return examine(call, self.limits, release)

    def warn_once(self, about: object, message: str, site: Site) -> None:
        """Warn at the user's line, once for each thing to warn about."""
        if about not in self._warned:
            warnings.warn_explicit(message, SDPAGuardWarning, site.filename, site.lineno)
            self._warned.add(about)  # not before: a filter may turn each into an error

    def _measure(self, call: Call, release: Optional[Release]) -> list[Finding]:
        findings = examine(call, self.limits, release)
        self.report.measured(findings)
        return [finding for finding in findings if finding.over]

    def _plan(
        self, call: Call, release: Optional[Release], taken: frozenset[str]
    ) -> Optional[Plan]:
        return remedy(call, [limit for limit in self.limits if limit.backend in taken], release)


def _token(*settings: object) -> str:
    # A limit's function is told by its name: its address is another in each process.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_settings(
    policy: str,
    limits: Iterable[Limit],
    torch_version: Optional[str],
    device_types: Sequence[str],
) -> Settings:
    """The checked settings of a guard."""
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
    listed = isinstance(limits, Iterable) and not isinstance(limits, str)
    judged_by: tuple[Limit, ...] = tuple(limits) if listed else (limits,)  # type: ignore[assignment]
    for limit in judged_by:
        if not isinstance(limit, Limit):
            raise TypeError(f"limits must be Limit objects, as those in LIMITS, not {limit!r}")
    device_types = check_names("device_types", device_types, DEVICE_TYPES)
    # On ROCm other kernels stand behind the same device type; none of these limits is theirs.
    judged = tuple(d for d in device_types if not (d == "cuda" and torch.version.hip))
    return Settings(policy, judged_by, parse_release(torch_version), judged)
