"""What a step's output and gradients should have been: the math backend in float32, in slices.

A slice is far from every bound: 2**25 scores, 2**14 matrix products, offsets below 2**31.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .measurement import WRONG_GRADIENTS, WRONG_OUTPUT
from .step import Inputs, Step, picked_rows
from .trial import Trial

#: Elements that a tensor of the reference may have: 128 MiB in float32.
_ELEMENTS = 2**25
#: Matrix products that it may make at once.
_PRODUCTS = 2**14
#: Largest difference from the reference, as a share of its largest value. bfloat16 rounds by 0.004;
#: a value that belongs elsewhere is off by about as much as it is large.
_TOLERANCE = 0.05


class Slice(NamedTuple):
    """How much of a trial is compared at once."""

    batch: int
    kv_heads: int
    seq_q: int


def slice_of(trial: Trial) -> Slice:
    """The largest that stays inside; a single head's keys are not divided."""
    head = trial.group * max(trial.seq_q, trial.seq_k) * trial.head_dim
    head = max(head, trial.group * trial.seq_q * trial.seq_k)
    fitting = max(1, min(_PRODUCTS // trial.group, _ELEMENTS // head))
    rows = _ELEMENTS // (trial.group * max(trial.seq_k, trial.head_dim))
    return Slice(
        batch=min(trial.batch, max(1, fitting // trial.kv_heads)),
        kv_heads=min(trial.kv_heads, fitting),
        seq_q=max(1, min(trial.seq_q, rows)),
    )


def difference(trial: Trial, inputs: Inputs, step: Step) -> Optional[str]:
    """What is wrong with the step, as a short text."""
    if trial.dropout_p:
        return _dropped_otherwise(trial, inputs, step)
    size = slice_of(trial)
    mask = None
    if inputs.mask is not None:
        mask = inputs.mask.detach()
        mask = mask.float().requires_grad_() if trial.mask_requires_grad else mask
    for batch in _slices(trial.batch, size.batch):
        for kv_heads in _slices(trial.kv_heads, size.kv_heads):
            wrong = _compare_entries(trial, inputs, step, mask, batch, kv_heads, size.seq_q)
            if wrong:
                return wrong
    if mask is not None and mask.grad is not None and inputs.mask is not None:
        return None if _close(inputs.mask.grad, mask.grad) else WRONG_GRADIENTS
    return None


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, start + size)


def _compare_entries(
    trial: Trial,
    inputs: Inputs,
    step: Step,
    mask: Optional[torch.Tensor],
    batch: slice,
    kv_heads: slice,
    at_once: int,
) -> Optional[str]:
    heads = slice(kv_heads.start * trial.group, kv_heads.stop * trial.group)
    key, value = (
        tensor.detach()[batch, kv_heads].float().requires_grad_(trial.backward)
        for tensor in (inputs.key, inputs.value)
    )
    for rows in _slices(trial.seq_q, at_once):
        part = (batch, heads, rows)
        query = inputs.query.detach()[part].float().requires_grad_(trial.backward)
        bias = None if mask is None else mask[rows].float()
        with sdpa_kernel(SDPBackend.MATH):
            keys, values = (t.repeat_interleave(trial.group, 1) for t in (key, value))
            out = scaled_dot_product_attention(query, keys, values, bias)
        if not _close(step.out[part], out):
            return WRONG_OUTPUT
        if step.grad is not None:
            out.backward(step.grad[part].float())
            if not _close(_gradient(inputs.query)[part], _gradient(query)):
                return WRONG_GRADIENTS
    if step.grad is not None:
        for whole, alone in ((inputs.key, key), (inputs.value, value)):
            if not _close(_gradient(whole)[batch, kv_heads], _gradient(alone)):
                return WRONG_GRADIENTS
    return None


def _dropped_otherwise(trial: Trial, inputs: Inputs, step: Step) -> Optional[str]:
    """Whether the weights that the backward used make other output rows than the forward's.

    Which elements are dropped is the kernel's to choose; it must choose the same ones twice.
    """
    if inputs.value.grad is None:
        return None  # a forward by itself may drop what it likes
    rows = picked_rows(trial)
    for batch in _slices(trial.batch, max(1, _PRODUCTS // trial.kv_heads)):
        weights = inputs.value.grad[batch, ..., : len(rows)].float().transpose(-2, -1)
        expected = weights @ inputs.value.detach()[batch].float()
        if not _close(step.out[batch, :, rows], expected):
            return WRONG_GRADIENTS
    return None


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.grad is None:
        raise AssertionError("a backward has been made, but gave an input no gradient")
    return tensor.grad


def _close(actual: Optional[torch.Tensor], expected: torch.Tensor) -> bool:
    """Also false for NaN."""
    if actual is None:
        return False
    difference = (actual.float() - expected.detach()).abs().max()
    return bool(difference <= _TOLERANCE * expected.detach().abs().max())
