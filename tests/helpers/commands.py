"""The command line: called in this process, or installed as a console script."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from pathlib import Path
from typing import NamedTuple, Optional

import pytest

from helpers.inside import (
    main,
)

#: The console script: for tests of a process, its streams and its end.
SCRIPT = Path(sys.executable).with_name("sdpa-guard")
#: Those that a command may handle in its own way.
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Ended(NamedTuple):
    """What :class:`subprocess.CompletedProcess` tells."""

    returncode: int
    stdout: str
    stderr: str


def command(
    *arguments: str,
    env: Optional[dict[str, str]] = None,
    input: str = "",
    cwd: Optional[Path] = None,
) -> Ended:
    """``sdpa-guard`` in this process, which spares the import of torch."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SDPA_GUARD", raising=False)
        for name, value in {"COLUMNS": "100", **(env or {})}.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        patch.setattr(sys, "stdin", io.StringIO(input))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(arguments)
        except SystemExit as end:
            status = end.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Ended(status, out.getvalue(), err.getvalue())


def fits_the_page(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 100
