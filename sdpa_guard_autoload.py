"""What ``SDPA_GUARD`` in the environment does: guard a program that never imports sdpa_guard.

This module stands beside the package: torch imports it in every program of an environment that has
the package, so it must cost nothing where the variable is unset.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional

VARIABLE = "SDPA_GUARD"
#: What each value of the variable means: a policy, or None for no guard.
POLICIES = {
    "": None,
    "0": None,
    "off": None,
    "1": "split",
    "on": "split",
    "split": "split",
    "warn": "warn",
    "raise": "raise",
}
#: For torch before 2.5: a file that Python reads as it starts, and its line.
PTH_FILE = "sdpa_guard_autoload.pth"
PTH_LINE = (
    f'import os; os.environ.get("{VARIABLE}") and __import__("{__name__}").activate_after_torch()'
)


def policy(value: Optional[str]) -> Optional[str]:
    """The policy that a value of the variable asks for, or None for no guard.

    Raises ValueError, naming what is allowed.
    """
    try:
        return POLICIES[(value or "").strip().lower()]
    except KeyError:
        allowed = ", ".join(name for name in POLICIES if name)
        raise ValueError(f"{VARIABLE} must be one of {allowed}, not {value!r}") from None


def activate() -> None:
    """Enable the guard if the variable says so. torch calls this at the end of its own import.

    Never raises: whatever goes wrong is said on stderr, and the program runs as without a guard.
    """
    try:
        asked = policy(os.environ.get(VARIABLE))
        if asked is not None:
            from sdpa_guard.dispatcher import enable

            enable(asked)
    except ValueError as wrong:
        _say(str(wrong))
    except Exception as fault:
        _say(f"{VARIABLE} could not be followed: {fault!r}")


def activate_after_torch() -> None:
    """Wait for the program to import torch, then ``activate``: for torch before 2.5.

    Those releases do not look for extensions, so the line ``PTH_LINE`` in a ``.pth`` file has to
    come first.
    """
    sys.meta_path.insert(0, _WaitForTorch())


class _WaitForTorch:
    def find_spec(self, name: str, *_: Any) -> Optional[ModuleSpec]:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_activate(module: ModuleType) -> None:
                load(module)
                activate()

            spec.loader.exec_module = load_and_activate  # type: ignore[method-assign]
        return spec


def _say(reason: str) -> None:
    with contextlib.suppress(Exception):
        print(f"sdpa_guard: error: {reason}; nothing is guarded", file=sys.stderr)
