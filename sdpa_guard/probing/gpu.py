"""Which GPU is measured, and how much of it is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import SDPAGuardError
from .process import COMMAND, ask


class NoGPUError(SDPAGuardError):
    """Nothing can be measured here."""


class GPU(NamedTuple):
    """The GPU that is measured."""

    name: str
    free_gib: float
    #: The dtype of the trials: the name of a torch dtype.
    dtype: str


def find_gpu(timeout: float = 300, command: Sequence[str] = COMMAND) -> GPU:
    """Ask a child, so that this process takes none of the GPU's memory.

    Raises NoGPUError where there is no CUDA GPU, or no answer within ``timeout`` seconds.
    """
    ended = ask({"ask": "gpu"}, timeout, command)
    if ended.answer is None:
        raise NoGPUError(f"cannot ask for the GPU: {ended.as_text()}")
    if not ended.answer:
        raise NoGPUError("there is no CUDA GPU in reach, and probe measures on one")
    return GPU(**ended.answer)
