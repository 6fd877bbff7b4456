"""How much GPU memory a trial needs."""

from __future__ import annotations

from ..limits.backends import FLASH
from ..limits.flash_counts import workspace
from ..limits.rounding import round_up
from .reference import slice_of
from .trial import Trial

_GIB = 2**30
#: What the allocator leaves unused between tensors.
_GAPS = 1.15
#: The kernels themselves, and what torch and CUDA's libraries keep for their own use.
_BASE = 1.0


def needed_gib(trial: Trial) -> float:
    """A rough estimate of what the step needs: guarded or unguarded, whichever is more."""
    kept = trial.call.dtype.itemsize * _kept(trial)
    return _GAPS * (kept + 4 * max(_during_step(trial), _during_comparison(trial))) / _GIB + _BASE


def _kept(trial: Trial) -> int:
    """Elements of what is there until the end."""
    query, keys = _query(trial), _keys(trial)
    # Strided key and value share their memory, and may be copied.
    kept = query + 2 * keys + (0 if trial.kv_head_stride is None else trial.shared_memory)
    kept += 2 * query  # the output, and its chunks
    kept += trial.seq_q * trial.seq_k if trial.mask else 0
    if trial.backward:
        kept += 2 * query + 2 * keys  # the output's gradient, and the inputs'
    return kept


def _during_step(trial: Trial) -> int:
    """Float32 elements of what the kernels need besides."""
    flash = trial.entry.backend == FLASH
    sums = trial.batch * trial.heads * round_up(trial.seq_q, 128 if flash else 32)
    if not trial.backward:
        return sums
    if flash:
        return 2 * sums + workspace(trial.call)
    mask = trial.batch * trial.heads * trial.seq_q * round_up(trial.seq_k, 16)
    masks = mask if trial.mask_requires_grad else 0
    return 2 * sums + masks + _query(trial) + 2 * _keys(trial)


def _during_comparison(trial: Trial) -> int:
    """Float32 elements of one slice of the reference, its softmax, and their gradients."""
    part = slice_of(trial)
    heads = part.batch * part.kv_heads * trial.group
    keys = heads * trial.seq_k * trial.head_dim
    query = heads * part.seq_q * trial.head_dim
    scores = heads * part.seq_q * trial.seq_k
    return (8 if trial.backward else 5) * keys + 8 * query + 6 * scores


def _query(trial: Trial) -> int:
    return trial.batch * trial.heads * trial.seq_q * trial.head_dim


def _keys(trial: Trial) -> int:
    # FlashAttention makes a gradient for each query head of a group.
    return trial.batch * trial.heads * trial.seq_k * trial.head_dim
