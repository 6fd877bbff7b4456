"""How models lay query, key and value out in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Union

from .call import Strides, contiguous

Layout = Literal["bhsd", "bshd", "sbhd", "packed-qkv", "packed-sbhd", "expanded-kv"]
LAYOUTS: dict[Layout, str] = {
    "bhsd": "contiguous (batch, heads, length, head dim)",
    "bshd": "a view of (batch, length, heads, head dim), as most models split their heads",
    "sbhd": "a view of (length, batch, heads, head dim), as nn.MultiheadAttention makes it",
    "packed-qkv": "a view of (batch, length, 3, heads, head dim): one projection for all three",
    "packed-sbhd": "a view of (length, batch, 3, heads, head dim)",
    "expanded-kv": "contiguous, one key/value head expanded over all heads",
}

#: Strides by the names "query", "key" and "value": elements between two batch entries, two heads
#: and two rows.
StridesByName = Mapping[str, tuple[int, int, int]]


class CallStrides(NamedTuple):
    query: Strides
    key: Strides
    value: Strides


class Sizes(NamedTuple):
    """Of one tensor (batch, heads, length, head dim)."""

    batch: int
    heads: int
    length: int
    dim: int


def lay_out(layout: Union[Layout, StridesByName], query: Sizes, key: Sizes) -> CallStrides:
    """The strides of query, key and value.

    Raises ValueError or TypeError for a layout that is not known; the message says which are.
    """
    if isinstance(layout, Mapping):
        return _given(layout, query, key)
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be among {', '.join(LAYOUTS)}, not {layout!r}")
    if layout == "expanded-kv":
        expanded = Strides(head=0, row=key.dim, batch=key.length * key.dim)
        return CallStrides(contiguous(*query), expanded, expanded)
    strides = {
        "bhsd": contiguous,
        "bshd": _batch_first,
        "sbhd": _length_first,
        "packed-qkv": _packed_batch_first,
        "packed-sbhd": _packed_length_first,
    }[layout]
    return CallStrides(strides(*query), strides(*key), strides(*key))


def _given(layout: StridesByName, query: Sizes, key: Sizes) -> CallStrides:
    found = {"query": contiguous(*query), "key": contiguous(*key), "value": contiguous(*key)}
    for name, strides in layout.items():
        if name not in found:
            raise ValueError(f"layout must name query, key and value, not {name!r}")
        if len(strides) != 3 or not all(isinstance(s, int) and s >= 0 for s in strides):
            raise ValueError(
                f"layout must give {name} three strides (batch, head, row), not {strides!r}"
            )
        batch, head, row = strides
        found[name] = Strides(head=head, row=row, batch=batch)
    return CallStrides(**found)


def _batch_first(batch: int, heads: int, length: int, dim: int) -> Strides:
    return Strides(head=dim, row=heads * dim, batch=length * heads * dim)


def _length_first(batch: int, heads: int, length: int, dim: int) -> Strides:
    return Strides(head=dim, row=batch * heads * dim, batch=heads * dim)


def _packed_batch_first(batch: int, heads: int, length: int, dim: int) -> Strides:
    return Strides(head=dim, row=3 * heads * dim, batch=3 * length * heads * dim)


def _packed_length_first(batch: int, heads: int, length: int, dim: int) -> Strides:
    return Strides(head=dim, row=3 * batch * heads * dim, batch=3 * heads * dim)
