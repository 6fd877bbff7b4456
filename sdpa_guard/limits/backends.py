"""Which fused backend could take a call, on which torch release."""

from __future__ import annotations

from typing import Final, Literal

import torch

from .call import Call
from .integer_ends import GRID
from .releases import Release

Backend = Literal["flash", "efficient", "cudnn"]

FLASH: Final = "flash"
EFFICIENT: Final = "efficient"
CUDNN: Final = "cudnn"
MATH: Final = "math"
#: The fused backends: those that have limits.
BACKENDS: tuple[Backend, ...] = (FLASH, EFFICIENT, CUDNN)
#: The place of each in ``torch.nn.attention.SDPBackend`` is torch's number for it.
BY_TORCHS_NUMBER = (MATH, *BACKENDS, "overrideable")

_HALF = (torch.float16, torch.bfloat16)
_GQA_FLASH = Release(2, 5)
_GQA_EFFICIENT = Release(2, 14)
_CUDNN_BY_DEFAULT = Release(2, 5)
_CUDNN_NO_LENGTH_ONE = Release(2, 6)
_CUDNN_ONE_QUERY = Release(2, 9)
_CUDNN_GRID = Release(2, 13)
_MASK_OR_CAUSAL = Release(2, 14)
_FLASH_GRID = Release(2, 15)
#: The releases that changed any of these rules.
_CHANGES = (
    _GQA_FLASH,
    _CUDNN_NO_LENGTH_ONE,
    _CUDNN_ONE_QUERY,
    _CUDNN_GRID,
    _MASK_OR_CAUSAL,
    _FLASH_GRID,
)


def torchs_name(backend: Backend) -> str:
    """The backend's name in ``torch.nn.attention.SDPBackend``."""
    return f"{backend.upper()}_ATTENTION"


def rules_of(release: Release) -> int:
    """The number of the rules that hold in that release; equal where ``takes`` says the same."""
    return len([change for change in _CHANGES if change <= release])


def takes(backend: Backend, call: Call, release: Release) -> bool:
    """Whether the backend's constraints, in that torch release, let it take the call.

    From ``can_use_flash_attention`` and its siblings in torch's sdp_utils.cpp. What depends on the
    GPU's architecture counts as met.
    """
    if call.is_causal and call.mask is not None and release >= _MASK_OR_CAUSAL:
        return False
    if backend == FLASH:
        return _flash_takes(call, release)
    return _efficient_takes(call, release) if backend == EFFICIENT else _cudnn_takes(call, release)


def _flash_takes(call: Call, release: Release) -> bool:
    if call.mask is not None or not _has_dtype(call, _HALF):
        return False
    if release >= _FLASH_GRID and (call.batch > GRID or call.heads > GRID):
        return False
    if call.head_dim != call.value_dim or call.head_dim > 256:
        return False
    if call.is_causal and call.seq_q != call.seq_k:
        return False
    return call.heads == call.kv_heads or release >= _GQA_FLASH


def _efficient_takes(call: Call, release: Release) -> bool:
    if not _has_dtype(call, (*_HALF, torch.float32)):
        return False
    if call.heads != call.kv_heads and release < _GQA_EFFICIENT:
        return False
    # Only the kernels for bfloat16 want the same alignment on every GPU that has them.
    aligned = 8 if call.dtype is torch.bfloat16 else 1
    return _stands_in(call) or (call.head_dim % aligned == 0 and call.value_dim % aligned == 0)


def _cudnn_takes(call: Call, release: Release) -> bool:
    if release < _CUDNN_BY_DEFAULT or not _has_dtype(call, _HALF):
        return False
    if call.mask_requires_grad:
        return False
    if release >= _CUDNN_GRID and (call.batch > GRID or call.heads > GRID):
        return False
    if release >= _CUDNN_NO_LENGTH_ONE:
        if call.seq_k == 1:
            return False
        if call.seq_q == 1 and (call.dropout_p or release < _CUDNN_ONE_QUERY):
            return False
    if call.head_dim > 256 or call.value_dim > 256:
        return False
    return _stands_in(call) or (call.head_dim % 8 == 0 and call.value_dim % 8 == 0)


def _has_dtype(call: Call, dtypes: tuple[torch.dtype, ...]) -> bool:
    return call.dtype in dtypes or _stands_in(call)


def _stands_in(call: Call) -> bool:
    # On the CPU a call stands in for the CUDA call it will be; its own dtype says nothing of that.
    return call.device_type == "cpu"
