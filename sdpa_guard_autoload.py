"""What ``SDPA_GUARD`` in the environment does: guard a program that never imports sdpa_guard.

This module stands beside the package: torch imports it in every program of an environment that has
the package, so it must cost nothing where the variable is unset.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from sdpa_guard.guarding.options import Policy

VARIABLE = "SDPA_GUARD"
#: What each value of the variable means: a policy, or None for no guard.
POLICIES: dict[str, Optional[Policy]] = {
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
# The line stays when the package is uninstalled: it has to look for this module first.
PTH_LINE = (
    f'import os; os.environ.get("{VARIABLE}") and '
    f'__import__("importlib.util").util.find_spec("{__name__}") and '
    f'__import__("{__name__}").activate_after_torch()'
)

_activated = False


def policy(value: Optional[str]) -> Optional[Policy]:
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

    Only the first call does anything: torch and the ``.pth`` file may both make one. Never raises:
    what goes wrong is written to stderr, and the program runs unguarded.
    """
    global _activated
    if _activated:
        return
    _activated = True
    try:
        asked = policy(os.environ.get(VARIABLE))
        if asked is not None:
            from sdpa_guard.guarding.door_process_wide import enable

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
    if not any(isinstance(finder, _WaitForTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WaitForTorch())


class _WaitForTorch:
    def find_spec(self, name: str, *place: Any) -> Optional[ModuleSpec]:
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (other.find_spec(name, *place) for other in others if hasattr(other, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_activate(module: ModuleType) -> None:
                load(module)
                # Not before: many a program asks whether there is a torch, and imports it later.
                with contextlib.suppress(ValueError):
                    sys.meta_path.remove(self)
                activate()

            spec.loader.exec_module = load_and_activate  # type: ignore[method-assign]
        return spec


def _say(reason: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(f"sdpa_guard: error: {reason}; nothing is guarded\n")
