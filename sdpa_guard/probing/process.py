"""One question to a process of its own: a fault ruins the CUDA context that it happens in."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, Optional

from sdpa_guard_autoload import VARIABLE

from .measurement import NO_RESULT, PASSES, TIMED_OUT

#: The program that a child runs; a question in JSON follows.
COMMAND = (sys.executable, "-m", "sdpa_guard.probing.child")


class Ended(NamedTuple):
    """How a child ended."""

    #: None: it was ended after the time limit.
    status: Optional[int]
    #: None: it ended without one.
    answer: Any
    #: The last line that it wrote to standard error.
    complaint: str

    def as_text(self) -> str:
        if self.status is None:
            return TIMED_OUT
        # A fault can kill the process after its answer, so a pass needs exit status 0 as well.
        if self.answer is not None and (self.status == 0 or self.answer != PASSES):
            return str(self.answer)
        if self.status < 0:
            return f"killed by signal {-self.status}"
        return f"{NO_RESULT}: status {self.status}: {self.complaint[:200]}"


def ask(question: dict[str, Any], timeout: float, command: Sequence[str] = COMMAND) -> Ended:
    """Start the command with the question, and see how it ends."""
    # A child would be guarded by the variable, whatever it is asked.
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [*command, json.dumps(question)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
        status = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = child.wait(timeout)
        finally:
            _end(child)
        complaints = [line for line in _text(err).splitlines() if line.strip()]
        answer = _answer(_text(out), question["ask"])
        return Ended(status, answer, complaints[-1].strip() if complaints else "")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and all that it started, also after its own end: they would hold memory."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _answer(text: str, ask: str) -> Any:
    """The last line of JSON that answers; None where no line does."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and ask in answer:
                return answer[ask]
    return None
