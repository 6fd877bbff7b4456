"""A glance at a call's arguments: enough to tell a call that was judged before."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Optional

import torch

from .dynamo import uncompiled


@uncompiled
def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optional[Hashable]:
    """What a call's judgement depends on, but for the guard's settings; None for most odd calls.

    What torch refuses whatever its size, as tensors of several dtypes, is not told apart. It has no
    hash where sizes are symbols.
    """
    # Autocast casts the inputs later, and torch.vmap hides the size of its batch.
    if torch._C._is_any_autocast_enabled() or torch._C._functorch.peek_interpreter_stack():
        return None
    try:
        query, key, value, *others = args
        facts = (
            query.shape,
            key.shape,
            value.shape,
            query.stride(),
            key.stride(),
            value.stride(),
            query.dtype,
            query.device,
            query.__class__,
            key.__class__,
            value.__class__,
            query.requires_grad or key.requires_grad or value.requires_grad,
            torch.is_grad_enabled(),
        )
        if others or kwargs:
            return (*facts, *kwargs, *map(_facts, others), *map(_facts, kwargs.values()))
    except (AttributeError, RuntimeError, ValueError):
        return None
    return facts


@uncompiled
def _facts(argument: Any) -> Hashable:
    """The same of a mask, or of a plain value."""
    kind = argument.__class__
    if argument is None or kind in (bool, float, int):
        return kind, argument  # False is not 0 to torch
    return kind, argument.shape, argument.stride(), argument.dtype, argument.requires_grad
