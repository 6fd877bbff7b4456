"""Sizes that are symbols while torch compiles or exports a program."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .call import Arguments, Call
from .limit import Limit
from .release import RUNNING_TORCH, Release

# Earlier releases have no way to ask without an answer that binds.
_CAN_ASK = Release(2, 7) <= RUNNING_TORCH


def are_known(arguments: Arguments) -> bool:
    """Whether no size of the call is one that only the data will tell."""
    if not _CAN_ASK:
        return True
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    tensors = (arguments.query, arguments.key, arguments.value)
    return all(guard_or_false(size >= 1) for tensor in tensors for size in tensor.shape)


def may_compare(call: Call, limits: Iterable[Limit]) -> bool:
    """Whether a comparison with the bounds leaves the program as general as it is.

    torch exports it for every size of a range, which a comparison would narrow: not then, unless
    the call is over a limit with each of them.
    """
    if not (_CAN_ASK and torch.compiler.is_exporting()):
        return True
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return any(statically_known_true(limit.counted(call) > limit.bound) for limit in limits)
