"""What a guard was asked to do."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Literal, Optional

import torch

from ..errors import check_names
from ..limits.limit import Limit
from ..limits.releases import RELEASES, RUNNING_TORCH, Release, parse_release

Policy = Literal["split", "warn", "raise"]
DeviceType = Literal["cpu", "cuda", "meta"]

POLICIES: tuple[Policy, ...] = ("split", "warn", "raise")
#: The device types whose calls can be judged as CUDA calls.
DEVICE_TYPES: tuple[DeviceType, ...] = ("cpu", "cuda", "meta")
#: Those that are judged unless the caller says otherwise.
JUDGED: tuple[DeviceType, ...] = ("cuda", "meta")


@dataclasses.dataclass(frozen=True)
class Options:
    """The checked arguments of a guard."""

    policy: Policy
    limits: tuple[Limit, ...]
    #: The torch release whose limits count; None: not given, and the device decides.
    release: Optional[Release]
    #: The devices whose calls are judged.
    device_types: tuple[DeviceType, ...]
    #: Equal for equal options, also in other processes.
    token: str

    def releases(self, real: bool) -> tuple[Release, ...]:
        """The releases whose limits count: every supported one for a call that is a rehearsal.

        ``real`` says that the call is no rehearsal: a kernel of the running torch will take it.
        """
        if self.release is not None:
            return (self.release,)
        return (RUNNING_TORCH,) if real else RELEASES


def make_options(
    policy: str,
    limits: Iterable[Limit],
    torch_version: Optional[str],
    device_types: Sequence[str],
) -> Options:
    """The arguments of a guard, checked.

    Raises ValueError or TypeError for a wrong one; the message says what is allowed.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
    listed = isinstance(limits, Iterable) and not isinstance(limits, str)
    judged_by: tuple[Limit, ...] = tuple(limits) if listed else (limits,)  # type: ignore[assignment]
    for limit in judged_by:
        if not isinstance(limit, Limit):
            raise TypeError(f"limits must be Limit objects, as those in LIMITS, not {limit!r}")
    devices = check_names("device_types", device_types, DEVICE_TYPES)
    # On ROCm other kernels stand behind the same device type; they have none of these limits.
    judged = tuple(d for d in devices if not (d == "cuda" and torch.version.hip))
    release = None if torch_version is None else parse_release(torch_version)
    token = _token(policy, judged_by, release, judged)
    return Options(policy, judged_by, release, judged, token)


def _token(*options: object) -> str:
    # A function counts by its name: its address differs between processes.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(options))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
