"""For your own tests: which attention calls reached torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

import torch

from . import backends, kernel
from .call import bind
from .settings import DEVICE_TYPES


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """One ``scaled_dot_product_attention`` call as torch was given it, after any split."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    attn_mask: Optional[tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device
    dropout_p: float
    is_causal: bool
    #: The fused backends that the context allowed: "flash", "efficient", "cudnn".
    backends: frozenset[str]


@contextlib.contextmanager
def record_calls() -> Iterator[list[RecordedCall]]:
    """The attention calls of all threads that reach torch inside the context, in a list.

    With a guard open inside, these are the chunks. Calls under ``torch.func.vmap`` are not seen,
    nor those on meta tensors in inference mode: torch takes them past every kernel of ours.
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
                backends=backends.enabled(),
            )
        )

    kernel.open_kernel(DEVICE_TYPES)
    kernel.recorders.append(record)
    try:
        yield calls
    finally:
        kernel.recorders.remove(record)
        kernel.close_kernel(DEVICE_TYPES)
