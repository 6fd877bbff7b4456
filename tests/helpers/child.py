"""Programs of their own, with the tests' helpers in reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

#: The folder that ``helpers`` is imported from.
TESTS = Path(__file__).parent.parent
#: Seconds after which a program hangs: far more than any needs on a busy machine.
HANGS = 600

#: A program that prints the policy of its guard.
POLICY = "from helpers.policy import policy; print(policy())"


def environment(**variables: str) -> dict[str, str]:
    """What a child inherits: no guard, one thread, and every module that the tests find."""
    inherited = {name: value for name, value in os.environ.items() if name != "SDPA_GUARD"}
    searched = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    path = os.pathsep.join(searched)
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}


def ended(
    *command: object, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """How a program ends, and what it prints on both streams."""
    command = command[0] if options.get("shell") else [str(part) for part in command]
    return subprocess.run(
        command,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=HANGS,
        **options,
    )


def python(*arguments: str, guard: str | None = None, **variables: str) -> tuple[str, str]:
    """What a Python program prints on both streams; it has to succeed."""
    if guard is not None:
        variables["SDPA_GUARD"] = guard
    result = ended(sys.executable, *arguments, env=variables)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr.strip()
