"""One attention step tried in this process: ``python -m sdpa_guard.probing.child QUESTION``.

``probe`` asks in JSON, one question a process, and reads one line of JSON from standard output.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..guarding.door_scoped import SDPAGuard
from ..guarding.options import DeviceType
from ..limits.backends import Backend, torchs_name
from ..limits.limit import Limit
from .measurement import OUT_OF_MEMORY, OVERWRITTEN, PASSES
from .reference import difference
from .step import Attention, Inputs, Step, as_text, is_out_of_memory, make_inputs, take_step
from .trial import Trial

_GIB = 2**30


def measure(
    trial: Trial,
    guarded: bool,
    device: DeviceType = "cuda",
    limits: Optional[Sequence[Limit]] = None,
    attend: Attention = scaled_dot_product_attention,
) -> str:
    """Make the step, and say in a few words what came of it.

    ``limits`` are the guard's, the trial's own one unless given; ``attend`` is what is tried.
    Raises what is not the attention's fault: the inputs or the reference could not be made.
    """
    guard = SDPAGuard(limits=[trial.entry] if limits is None else limits, device_types=(device,))
    scope: contextlib.AbstractContextManager[object] = (
        guard if guarded else contextlib.nullcontext()
    )
    try:
        inputs = make_inputs(trial, device)
        try:
            with scope, _kernels(trial.entry.backend, device):
                step = take_step(trial, inputs, attend)
        except RuntimeError as fault:
            return as_text(fault)
        return _verdict(trial, inputs, step)
    except RuntimeError as fault:
        if is_out_of_memory(fault):
            return OUT_OF_MEMORY
        raise


def _verdict(trial: Trial, inputs: Inputs, step: Step) -> str:
    if step.overwritten:
        return OVERWRITTEN
    return difference(trial, inputs, step) or PASSES


def _kernels(backend: Backend, device: str) -> contextlib.AbstractContextManager[None]:
    """Only this backend on CUDA; the CPU has other ones."""
    if device != "cuda":
        return contextlib.nullcontext()
    return sdpa_kernel(getattr(SDPBackend, torchs_name(backend)))


def describe_gpu() -> dict[str, Any]:
    """The GPU that trials run on, JSON-ready; nothing where there is no CUDA GPU."""
    if torch.version.hip or not torch.cuda.is_available():
        return {}
    return {
        "name": torch.cuda.get_device_name(),
        "free_gib": torch.cuda.mem_get_info()[0] / _GIB,
        "dtype": "bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float16",
    }


def main(question: str, **options: Any) -> None:
    """Answer one question on standard output. ``options`` are those of :func:`measure`."""
    # Some containers have the reference's matrix products rounded otherwise.
    torch.set_float32_matmul_precision("highest")
    asked = json.loads(question)
    if asked["ask"] == "gpu":
        answer: object = describe_gpu()
    else:
        answer = measure(Trial(**asked["trial"]), asked["guarded"], **options)
    print(json.dumps({asked["ask"]: answer}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
