"""Programs of their own, with the tests' helpers in reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def environment(**variables: str) -> dict[str, str]:
    """What a child inherits: no guard, and every module that the tests find."""
    inherited = {name: value for name, value in os.environ.items() if name != "SDPA_GUARD"}
    searched = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**inherited, "PYTHONPATH": os.pathsep.join(searched), **variables}


def python(*arguments: str, guard: str | None = None, **variables: str) -> tuple[str, str]:
    """What a program prints on both streams; it has to succeed."""
    if guard is not None:
        variables["SDPA_GUARD"] = guard
    result = subprocess.run(
        [sys.executable, *arguments],
        env=environment(OMP_NUM_THREADS="1", **variables),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr.strip()
