"""For your own tests: which attention calls reached torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

import torch

from .guarding.arguments import bind
from .guarding.dispatcher_hook import Hook, recorders
from .guarding.options import DEVICE_TYPES
from .guarding.torch_answers import enabled
from .limits.backends import Backend


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """One ``scaled_dot_product_attention`` call as torch was given it, after any split.

    >>> import torch
    >>> from sdpa_guard.testing import record_calls
    >>> with record_calls() as calls:
    ...     query = torch.ones(2, 4, 16, 8)
    ...     out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    >>> calls[0].key, calls[0].attn_mask, calls[0].dtype, calls[0].is_causal
    ((2, 4, 16, 8), None, torch.float32, False)
    """

    #: Its shape: (batch, heads, query length, head dim).
    query: tuple[int, ...]
    #: (batch, key/value heads, key length, head dim).
    key: tuple[int, ...]
    #: (batch, key/value heads, key length, value dim).
    value: tuple[int, ...]
    #: What broadcasts to (batch, heads, query length, key length); None without a mask.
    attn_mask: Optional[tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device
    dropout_p: float
    is_causal: bool
    #: The fused backends that the context allowed: "flash", "efficient", "cudnn".
    backends: frozenset[Backend]


@contextlib.contextmanager
def record_calls() -> Iterator[list[RecordedCall]]:
    """The attention calls of all threads that reach torch inside the context, in a list.

    With a guard open inside, these are the chunks. Calls under ``torch.func.vmap`` are not seen,
    nor those on meta tensors in inference mode: torch takes them past every kernel of ours.

    Returns:
        A context manager of the list, which grows call by call.

    Raises:
        SDPAGuardError: the running torch lacks what this needs; the message names it.

    >>> import torch
    >>> from sdpa_guard.testing import record_calls
    >>> with record_calls() as calls:
    ...     query = torch.ones(2, 4, 16, 8)
    ...     out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    >>> [call.query for call in calls]
    [(2, 4, 16, 8)]
    """
    calls: list[RecordedCall] = []

    def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        query, key, value, mask, options = bind(*args, **kwargs)
        calls.append(
            RecordedCall(
                query=tuple(query.shape),
                key=tuple(key.shape),
                value=tuple(value.shape),
                attn_mask=None if mask is None else tuple(mask.shape),
                dtype=query.dtype,
                device=query.device,
                dropout_p=options.get("dropout_p", 0.0),
                is_causal=options.get("is_causal", False),
                backends=enabled(),
            )
        )

    with Hook(DEVICE_TYPES):
        recorders.append(record)
        try:
            yield calls
        finally:
            recorders.remove(record)
