"""The key by which a call that was judged before is recognised: a glance at its arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from ..torch_private import any_autocast, innermost_transform
from .keep_eager import uncompiled

#: The key of a call that a glance cannot identify.
UNKNOWN = object()


@uncompiled
def call_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """All that a call's judgement depends on, the guard's options aside; UNKNOWN where a glance
    cannot tell.

    Calls that torch refuses at any size, such as one with tensors of several dtypes, may share a
    key with others. The key has no hash where sizes are symbols.
    """
    # Autocast casts the inputs later, and torch.vmap hides the size of its batch.
    if any_autocast() or innermost_transform():
        return UNKNOWN
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
            query.requires_grad,
            key.requires_grad,
            value.requires_grad,
            torch.is_grad_enabled(),
        )
        if others or kwargs:
            return (*facts, *kwargs, *map(_facts, others), *map(_facts, kwargs.values()))
    except (AttributeError, RuntimeError, ValueError):
        return UNKNOWN
    return facts


@uncompiled
def _facts(argument: Any) -> Hashable:
    """The same of a mask, or of a plain value."""
    kind = argument.__class__
    if argument is None or kind in (bool, float, int):
        return kind, argument  # False is not 0 to torch
    return kind, argument.shape, argument.stride(), argument.dtype, argument.requires_grad
