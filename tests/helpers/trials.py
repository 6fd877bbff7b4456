"""Steps for ``probe``'s child to try, and kernels that are wrong in known places."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.inside import (
    RUNNING_TORCH,
    Release,
)
from helpers.inside_probe import Trial
from helpers.lowered import BATCH, BY_ID, lowered

SMALL = Trial("E4", 3, 4, 8, 16, 16, "bfloat16", backward=True)
#: As long as a bfloat16 sum that hides a wrong row would have to be.
LONG = Trial("E4", 1, 2, 1024, 4096, 64, "bfloat16", backward=True)

HAS_GQA = Release(2, 5) <= RUNNING_TORCH
SPLIT = lowered(BATCH, 1)
LOWERED = dataclasses.replace(BY_ID["F2b"], bound=2)

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "float16": {"dtype": "float16"},
    "no backward": {"backward": False},
    "one row": {"seq_q": 1},
    "mask": {"mask": True},
    "mask that wants a gradient": {"mask": True, "mask_requires_grad": True},
    "dropout": {"dropout_p": 0.5},
    "rows far apart": {"kv_head_stride": 32, "kv_row_stride": 256},
    "queries that look at one key": {"focused": True, "backward": False},
    "heads far apart": {"kv_head_stride": 2048, "kv_row_stride": 64},
    "one head expanded": {"kv_head_stride": 0, "kv_row_stride": 32, "seq_q": 1, "backward": False},
}
if HAS_GQA:
    KINDS["groups of heads"] = {"group": 2}


class Kernel(TorchDispatchMode):
    """The CPU's fused kernel, with wrong gradients past a batch size; remembers its batches."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self.bound = bound
        self.batches: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            self.batches.append(args[0].shape[0])
        if name.endswith("for_cpu_backward") and args[1].shape[0] > self.bound:
            return (spoiled(results[0]), *results[1:])
        return results


def spoiled(tensor: torch.Tensor) -> torch.Tensor:
    """Another last row in the last entry."""
    changed = tensor.clone()
    changed[..., -1, :] = changed.flatten()[0] + 1
    return changed


def wrong_for(name: str, spoil: Callable[[torch.Tensor], torch.Tensor] = spoiled):
    """Attention that gives one input a wrong gradient."""

    class Spoil(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, grad):
            return spoil(grad)

    def attend(query, key, value, mask, **options):
        inputs = {"query": query, "key": key, "value": value, "mask": mask}
        inputs[name] = Spoil.apply(inputs[name])
        query, key, value, mask = inputs.values()
        return scaled_dot_product_attention(query, key, value, mask, **options)

    return attend


def with_a_row_of_another(tensor: torch.Tensor) -> torch.Tensor:
    """As an offset that wraps gives it: a value that is right elsewhere, and as large."""
    changed = tensor.clone()
    changed[-1, -1, -1] = tensor[-1, -1, 0]
    return changed
