"""A child of ``probe`` that does as it is told, by the batch size that it is asked for."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from pathlib import Path
from typing import Any, Optional

from helpers.child import HANGS
from helpers.inside_probe import (
    FAILS,
    FITS,
    GUARDED,
    UNGUARDED,
    Outcome,
    Planned,
    SaveFile,
    Shapes,
    probe,
)
from helpers.trials import SMALL

#: What a child does, by the batch size that it is asked for; each start leaves a line in a file.
CHILD = """
import json, os, signal, subprocess, sys, time
asked = json.loads(sys.argv[-1])
with open(__file__ + ".log", "a") as log:
    print(os.getpid(), os.environ.get("SDPA_GUARD"), file=log)
if asked["ask"] == "gpu":
    paper = {"name": "Paper GPU", "free_gib": 8.0, "dtype": "bfloat16"}
    print(json.dumps({"gpu": {} if os.path.exists(__file__ + ".no_gpu") else paper}))
    sys.exit()

def say(measured):
    print("some library's greeting")
    print(json.dumps({"trial": measured}), flush=True)

def leave_another():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(__file__ + ".grandchild", "w") as file:
        file.write(str(child.pid))

def hang():
    leave_another()
    time.sleep(3600)

def kill(number):
    os.kill(os.getpid(), number)

def complain():
    print("a longer story", file=sys.stderr)
    sys.exit("ImportError: no torch")

batch = asked["trial"]["batch"]
if os.path.exists(__file__ + ".answer"):
    with open(__file__ + ".answer") as file:
        past, answer = json.load(file)
    if batch <= past or asked["guarded"]: answer = "passes"
    if answer == "hang": hang()
    say(answer)
    sys.exit()
if batch == 1: say("passes")
if batch == 2: say("passes" if asked["guarded"] else "wrong gradients")
if batch == 3: hang()
if batch == 4: kill(signal.SIGSEGV)
if batch == 5: complain()
if batch == 6: say("passes"); kill(signal.SIGABRT)
if batch == 7: say("CUDA error: an illegal memory access"); kill(signal.SIGABRT)
if batch == 8: say("out of memory")
if batch == 9: kill(signal.SIGKILL)
if batch == 10: print("{not json")
if batch == 11: leave_another(); say("passes")
"""


class StandinChild:
    """The program, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "child.py"
        self.path.write_text(CHILD)
        self.command = [sys.executable, str(self.path)]
        self._grandchild = self.path.with_name("child.py.grandchild")

    def answer(self, measured: str, past: int) -> None:
        """What it measures of each larger batch without the guard: all else passes."""
        self.path.with_name("child.py.answer").write_text(json.dumps([past, measured]))

    def has_no_gpu(self) -> None:
        """It finds none."""
        self.path.with_name("child.py.no_gpu").touch()

    def starts(self) -> list[str]:
        """Process and SDPA_GUARD of each start."""
        log = self.path.with_name("child.py.log")
        return log.read_text().splitlines() if log.exists() else []

    def processes(self) -> list[int]:
        """Those that were started, and last the one that one of them started in turn."""
        own = [int(start.split()[0]) for start in self.starts()]
        return [*own, *([int(self._grandchild.read_text())] if self.hangs() else [])]

    def hangs(self) -> bool:
        """Whether one has come so far."""
        return self._grandchild.exists() and self._grandchild.read_text() != ""

    def run(self, what: Shapes, save: Optional[Path] = None, **options: Any) -> Outcome:
        options = {"timeout": HANGS, "progress": io.StringIO(), "gpu": "Paper GPU", **options}
        return probe(what, saved=SaveFile(save), command=self.command, **options)


def work(*batches: int, predicted: str = FAILS) -> Shapes:
    """Each batch size, unguarded and guarded."""
    trials = [dataclasses.replace(SMALL, batch=batch) for batch in batches]
    both = ((UNGUARDED, predicted), (GUARDED, FITS))
    return Shapes(tuple(Planned(t, how, says) for t in trials for how, says in both), ())


def is_running(process: int) -> bool:
    """Also false for one that has ended and that nobody has asked about yet."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def ends(process: int) -> bool:
    deadline = time.monotonic() + HANGS
    while is_running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(process)
