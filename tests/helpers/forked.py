"""Many ends of ``sdpa-guard``, each in a process of its own, for one import of torch.

``python -m helpers.forked`` has torch and forks for each line of standard input; a fork ends as a
process does, with its own exit status, streams and ``atexit``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers.child import environment


class Forks:
    """The process that forks; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / name for name in ("stdout", "stderr")]

    def __enter__(self) -> Forks:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(PYTHONUNBUFFERED=""),
            text=True,
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        stdin: str = os.devnull,
        stdout: str | None = None,
        stderr: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """``python -m sdpa_guard ARGUMENTS`` in the current folder; streams are names of files."""
        for file in self._files:
            file.write_text("")
        asked = {
            "arguments": arguments,
            "environment": environment(**(env or {})),
            "folder": os.getcwd(),
            "files": [stdin, stdout or str(self._files[0]), stderr or str(self._files[1])],
        }
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        status = json.loads(self._process.stdout.readline())
        texts = [file.read_text() for file in self._files]
        return subprocess.CompletedProcess(arguments, status, *texts)


def become(asked: dict[str, Any]) -> list[str]:
    """Take the place of a new process; returns the command's arguments."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for number, file in enumerate(asked["files"]):
        opened = os.open(file, os.O_WRONLY if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    return asked["arguments"]


if __name__ == "__main__":
    from helpers.inside import (
        main,
    )

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            # Nothing stands around this: the end is Python's own.
            sys.exit(main(become(json.loads(line))))
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)
