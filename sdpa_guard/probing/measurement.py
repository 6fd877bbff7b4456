"""The texts for what a trial can show, and what each tells of the registry."""

from __future__ import annotations

from typing import Optional

UNGUARDED, GUARDED = "unguarded", "guarded"

#: What the registry predicts.
FITS, FAILS = "fits", "fails"

#: What a trial shows. Besides these: "CUDA error: ...", "error: ..." in torch's words, "killed by
#: signal N", and what starts with NO_RESULT.
PASSES = "passes"
WRONG_OUTPUT, WRONG_GRADIENTS = "wrong output", "wrong gradients"
OVERWRITTEN = "inputs overwritten"
OUT_OF_MEMORY, NO_KERNEL = "out of memory", "no kernel takes it"
TIMED_OUT, NO_RESULT = "timed out", "no result"

#: How a process ends that somebody else ends, or the system when it is short of memory.
_ENDED_FROM_OUTSIDE = ("killed by signal 9", "killed by signal 15")


def agrees(predicted: str, measured: str) -> Optional[bool]:
    """Whether it was measured as predicted; None where the measurement tells neither."""
    if measured in (OUT_OF_MEMORY, NO_KERNEL, *_ENDED_FROM_OUTSIDE):
        return None
    if measured == TIMED_OUT:
        # A timeout confirms no failure, as a machine can be slow; it contradicts "fits".
        return False if predicted == FITS else None
    if measured.startswith(NO_RESULT):
        return False
    return (measured == PASSES) == (predicted == FITS)


def is_lasting(measured: str) -> bool:
    """Whether another try would show the same: memory and time can be there the next time."""
    passing = (OUT_OF_MEMORY, TIMED_OUT, *_ENDED_FROM_OUTSIDE)
    return measured not in passing and not measured.startswith(NO_RESULT)
