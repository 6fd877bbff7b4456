"""The errors and the warning that this package raises on its own account."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

_Name = TypeVar("_Name", bound=str)


class SDPAGuardError(Exception):
    """Base of every error that sdpa_guard itself raises."""


class OversizedCallError(SDPAGuardError, RuntimeError):
    """With ``policy="raise"``: an attention call is over a limit; no kernel was launched."""


class SDPAGuardWarning(UserWarning):
    """An attention call over a limit was left as it is, or the guard could not do its work."""


def check_names(argument: str, names: object, allowed: tuple[_Name, ...]) -> tuple[_Name, ...]:
    """The names as a tuple, each once; raises where one is not allowed, and says what is."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{argument} must be a tuple of names, not {names!r}")
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name not in allowed:
            raise ValueError(f"{argument} must be among {', '.join(allowed)}, not {name!r}")
    return names
