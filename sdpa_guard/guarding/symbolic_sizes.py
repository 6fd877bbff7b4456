"""Sizes that are symbols while torch compiles or exports a program."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..limits.call import Call
from ..limits.limit import Limit
from ..torch_private import CAN_ASK_OF_SIZES
from .arguments import Arguments


def are_known(arguments: Arguments) -> bool:
    """Whether no size of the call is one that only the data will tell."""
    if not CAN_ASK_OF_SIZES:
        return True
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    tensors = (arguments.query, arguments.key, arguments.value)
    return all(guard_or_false(size >= 1) for tensor in tensors for size in tensor.shape)


def may_compare(call: Call, limits: Iterable[Limit]) -> bool:
    """Whether a comparison with the bounds leaves the program as general as it is.

    torch exports it for every size of a range, which a comparison would narrow: not then, unless
    the call is over a limit with each of them.
    """
    if not (CAN_ASK_OF_SIZES and torch.compiler.is_exporting()):
        return True
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return any(statically_known_true(limit.counted(call) > limit.bound) for limit in limits)
