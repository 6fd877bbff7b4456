"""Sizes that are symbols while torch compiles or exports a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..limits.bisection import largest
from ..limits.call import Call
from ..limits.integer_ends import LARGEST_SIZE
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

    torch exports a program for every size of a range, and a comparison would narrow that range. It
    is made only where the smallest call of the range is over a limit.
    """
    if not (CAN_ASK_OF_SIZES and torch.compiler.is_exporting()):
        return True
    smallest = call.with_numbers(_least)
    return any(limit.counted(smallest) > limit.bound for limit in limits)


def _least(size: Any) -> int:
    """The least number that the size can be."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    # Dynamo, in torch 2.9, says of a symbol that it is an int; both are asked in the same way.
    if not statically_known_true(size >= 1):
        return 0
    known = 1
    while known < LARGEST_SIZE and statically_known_true(size >= 2 * known):
        known *= 2
    return largest(lambda number: statically_known_true(size >= number), known, 2 * known)
