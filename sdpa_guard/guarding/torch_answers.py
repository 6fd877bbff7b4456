"""What torch says of a call: the backends that are enabled, and the one that would take it."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch

from ..limits.backends import BACKENDS, BY_TORCHS_NUMBER, CUDNN, EFFICIENT, FLASH, Backend
from ..torch_private import choose_backend, constant_while_tracing, flash_implementation
from .arguments import Arguments

NONE: frozenset[Backend] = frozenset()


class Choice(NamedTuple):
    """The backend that torch gives a call to."""

    #: At most one backend; empty where no backend with limits takes the call.
    backends: frozenset[Backend]
    #: The name of what stands in for torch's own FlashAttention and takes the call, whose limits
    #: nobody knows; None where torch's own kernels take it.
    stand_in: Optional[str] = None


@constant_while_tracing  # dynamo cannot trace the switches; torch's kernels ask once as well
def enabled() -> frozenset[Backend]:
    """The fused backends that this context allows (``sdpa_kernel``, the global switches)."""
    allowed: set[Backend] = set()
    if torch.backends.cuda.flash_sdp_enabled():
        allowed.add(FLASH)
    if torch.backends.cuda.mem_efficient_sdp_enabled():
        allowed.add(EFFICIENT)
    if torch.backends.cuda.cudnn_sdp_enabled():
        allowed.add(CUDNN)
    return frozenset(allowed)


def capability(tensor: torch.Tensor) -> tuple[int, int]:
    """The compute capability of the GPU that the tensor is on."""
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return major, minor


def choice(arguments: Arguments) -> Choice:
    """What torch would do with these CUDA tensors, after autocast."""
    query, key, value, mask, options = arguments
    try:
        number = choose_backend(query, key, value, mask, **options)
    except RuntimeError:
        return Choice(NONE)  # no backend takes the call; torch says so when it is made
    chosen = [name for name in BACKENDS if BY_TORCHS_NUMBER.index(name) == number]
    if chosen == [FLASH]:
        stand_in = flash_implementation()
        if stand_in is not None:
            return Choice(NONE, stand_in)
    return Choice(frozenset(chosen))
