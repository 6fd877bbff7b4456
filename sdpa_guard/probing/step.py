"""One attention step: its inputs, the call, the backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, NamedTuple, Optional

import torch

from .measurement import NO_KERNEL, OUT_OF_MEMORY
from .trial import Trial

Attention = Callable[..., torch.Tensor]

#: Elements that are summed at once: torch makes 64-bit numbers of them first.
_AT_ONCE = 2**24
_BITS = {2: torch.int16, 4: torch.int32}


class Inputs(NamedTuple):
    """What attention is called with, and the tensors whose memory that is."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: Optional[torch.Tensor]
    memory: tuple[torch.Tensor, ...]


class Step(NamedTuple):
    """What attention gave; the inputs have their gradients."""

    out: torch.Tensor
    #: The gradient of the output; None without a backward.
    grad: Optional[torch.Tensor]
    #: Whether something that is only read has other bits than before.
    overwritten: bool


def make_inputs(trial: Trial, device: str) -> Inputs:
    """Random inputs, the same in every process."""
    torch.manual_seed(0)
    dtype, dim, kv_heads = trial.call.dtype, trial.head_dim, trial.kv_heads

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_()

    kv_shape = (trial.batch, kv_heads, trial.seq_k, dim)
    if trial.kv_head_stride is None:
        memory: tuple[torch.Tensor, ...] = (normal(*kv_shape), normal(*kv_shape))
        key, value = (tensor.detach() for tensor in memory)
    else:
        memory = (normal(trial.shared_memory),)
        key, value = (memory[0].as_strided(kv_shape, trial.kv_strides(), at) for at in (0, dim))
    if trial.focused:
        query = 16 * key[:, :, -trial.seq_q :].contiguous()
    else:
        query = normal(trial.batch, trial.heads, trial.seq_q, dim)
    mask = normal(trial.seq_q, trial.seq_k) if trial.mask else None
    if mask is not None:
        mask.requires_grad_(trial.mask_requires_grad)
    for tensor in (query, key, value):
        tensor.requires_grad_(trial.backward)
    return Inputs(query, key, value, mask, memory)


def take_step(trial: Trial, inputs: Inputs, attend: Attention) -> Step:
    """Call attention, go backward, and wait for the GPU."""
    options: dict[str, Any] = {"dropout_p": trial.dropout_p} if trial.dropout_p else {}
    if trial.group > 1:
        options["enable_gqa"] = True
    read = [inputs.query, *inputs.memory, *([] if inputs.mask is None else [inputs.mask])]
    before = _fingerprints(read)
    _unmap_free_memory(inputs.query)
    out = attend(inputs.query, inputs.key, inputs.value, inputs.mask, **options)
    grad = None
    if trial.backward:
        grad = _one_column_a_row(trial, out) if trial.dropout_p else torch.randn_like(out)
        read.append(grad)
        before += _fingerprints([grad])
        _unmap_free_memory(out)
        out.backward(grad)
    if out.is_cuda:
        torch.cuda.synchronize()
    return Step(out.detach(), grad, _fingerprints(read) != before)


def picked_rows(trial: Trial) -> list[int]:
    """Query rows from both ends, no more than the value has columns."""
    half = max(1, min(16, trial.head_dim // 2, trial.seq_q // 2))
    return sorted({*range(half), *range(trial.seq_q - half, trial.seq_q)})


def as_text(fault: RuntimeError) -> str:
    """What a fault of attention is reported as."""
    if is_out_of_memory(fault):
        return OUT_OF_MEMORY
    text = str(fault).strip().splitlines()[0][:200] if str(fault).strip() else repr(fault)
    if "No available kernel" in text:
        return NO_KERNEL
    return text if text.startswith("CUDA error") else f"error: {text}"


def is_out_of_memory(fault: RuntimeError) -> bool:
    """Also where not torch's allocator but a library of CUDA's found none."""
    if isinstance(fault, torch.cuda.OutOfMemoryError):
        return True
    text = str(fault).strip().partition("\n")[0]
    return "out of memory" in text or "_STATUS_ALLOC_FAILED" in text


def _one_column_a_row(trial: Trial, out: torch.Tensor) -> torch.Tensor:
    """A gradient for which the value's gradient is some rows of the dropped attention weights."""
    grad = torch.zeros_like(out)
    for column, row in enumerate(picked_rows(trial)):
        grad[:, :, row, column] = 1
    return grad


def _unmap_free_memory(tensor: torch.Tensor) -> None:
    # A kernel that strays into memory which torch only keeps for later does no harm, and no fault.
    if tensor.is_cuda:
        torch.cuda.empty_cache()


def _fingerprints(tensors: Iterable[torch.Tensor]) -> list[int]:
    """One sum over the bits of each: a write past one tensor's end can land in another."""
    return [_fingerprint(tensor.detach()) for tensor in tensors]


def _fingerprint(tensor: torch.Tensor) -> int:
    # All of them fill their memory; in which order matters to no sum.
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(_BITS[tensor.element_size()])
    return sum(int(part.sum()) for part in flat.split(_AT_ONCE))
