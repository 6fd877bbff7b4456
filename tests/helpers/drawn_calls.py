"""Random attention calls on meta tensors, most of them near the bounds of the kernels."""

from __future__ import annotations

import dataclasses
import random
from typing import Optional

import torch

#: Where the kernels' integers and tiles end.
EDGES = (2**24, 2**25, 2**31, 2**32, 65535)
NEAR = (-130, -65, -64, -33, -9, -8, -2, -1, 0, 0, 1, 1, 2, 8, 9, 31, 33, 63, 65, 127, 129)
DIMS = (8, 16, 32, 40, 64, 72, 96, 128, 160, 192, 224, 256)
LAYOUTS = (
    *("contiguous", "bshd", "sbhd", "packed", "packed sbhd"),
    *("expanded", "expanded", "wide rows", "long buffer"),
)
MASKS = ("rows", "rows", "heads", "batch", "full", "padding", "one row")
#: What fits on one large GPU.
MEMORY = 140 * 2**30


@dataclasses.dataclass
class Drawn:
    """One call: its tensors have no data."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: Optional[torch.Tensor]
    dropout_p: float
    is_causal: bool
    grad_mode: bool
    words: str

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [t for t in (self.query, self.key, self.value, self.mask) if t is not None]


def draw(dice: random.Random, backend: str) -> Drawn:
    """A call that fits into the memory of a GPU."""
    while True:
        drawn = _draw(dice, backend)
        if drawn is not None and _bytes(drawn) <= MEMORY:
            return drawn


def _draw(dice: random.Random, backend: str) -> Optional[Drawn]:
    layout = dice.choice(LAYOUTS)
    dtype = torch.bfloat16 if backend == "flash" or dice.random() < 0.6 else torch.float32
    dim = dice.choice(DIMS)
    value_dim = dim if backend == "flash" or dice.random() < 0.8 else dice.choice(DIMS)
    sizes = {
        "batch": dice.choice((1, 1, 2, 3, 8, 300, 40000, 65536)),
        "heads": dice.choice((1, 1, 2, 4, 8, 12, 32, 33, 65, 128, 70000)),
        "seq_q": dice.choice((1, 1, 2, 16, 64, 65, 129, 197, 1024, 4097, 50000, 70018)),
        "seq_k": dice.choice((1, 16, 64, 65, 129, 1024, 4096, 50000, 70018)),
    }
    if dice.random() < 0.5:
        sizes["seq_k"] = sizes["seq_q"]
    group = dice.choice((1, 1, 1, 2, 8)) if layout != "expanded" else 1
    is_causal = dice.random() < 0.2
    if is_causal and backend == "flash":
        sizes["seq_k"] = sizes["seq_q"]
    _approach(dice, sizes, dim, layout)
    heads = max(1, sizes["heads"] // group) * group
    if dice.random() < 0.8 and max(sizes.values()) > 2**27:
        return None
    batch, seq_q, seq_k = sizes["batch"], sizes["seq_q"], sizes["seq_k"]
    if is_causal and backend == "flash":
        seq_k = seq_q
    if _elements(batch, heads, seq_q, seq_k, dim) * dtype.itemsize > 4 * MEMORY:
        return None
    tensors = _lay_out(dice, layout, (batch, heads, heads // group, seq_q, seq_k), (dim, value_dim))
    query, key, value = (_as(tensor, dtype) for tensor in tensors)
    mask = None
    if backend == "efficient" and not is_causal and dice.random() < 0.5:
        mask = _mask(dice, (batch, heads, seq_q, seq_k), dtype)
    grad_mode = dice.random() < 0.6
    if grad_mode:
        for tensor in (query, key, value):
            if dice.random() < 0.8:
                _want_grad(tensor)
        if mask is not None and mask.dtype is not torch.bool and dice.random() < 0.4:
            _want_grad(mask)
    dropout = 0.25 if dice.random() < 0.3 else 0.0
    words = f"{layout} {batch}x{heads}/{heads // group}x{seq_q},{seq_k}x{dim},{value_dim} {dtype}"
    shape = "" if mask is None else f" mask {tuple(mask.shape)} {mask.stride()} {mask.dtype}"
    grads = [t.requires_grad for t in (query, key, value)]
    words += f"{shape} dropout={dropout} causal={is_causal} grads={grads}"
    words += f" strides {query.stride()} {key.stride()} {value.stride()}"
    return Drawn(query, key, value, mask, dropout, is_causal, grad_mode, words)


def _approach(dice: random.Random, sizes: dict[str, int], dim: int, layout: str) -> None:
    """Let one size bring some product of sizes next to an edge, and another end at a tile."""
    if dice.random() < 0.1:
        return
    parts = {
        **sizes,
        "dim": (dim + 31) // 32 * 32,
        "tile": dice.choice((1, 32, 64, 128, 256)),
        "three": 3 if "packed" in layout else 1,
    }
    chosen = dice.sample(sorted(parts), dice.randint(1, 5))
    free = [name for name in chosen if name in sizes]
    if not free:
        return
    name = dice.choice(free)
    rest = 1
    for other in chosen:
        rest *= parts[other] if other != name else 1
    size = dice.choice(EDGES) // rest + dice.choice(NEAR)
    if dice.random() < 0.3:
        tile = dice.choice((32, 64, 128))
        size = size // tile * tile + dice.choice((0, 1, 1, 2))
    sizes[name] = max(1, size)


def _elements(batch: int, heads: int, seq_q: int, seq_k: int, dim: int) -> int:
    return batch * heads * (seq_q + seq_k) * dim


def _lay_out(
    dice: random.Random, layout: str, sizes: tuple[int, ...], dims: tuple[int, int]
) -> tuple[torch.Tensor, ...]:
    batch, heads, kv_heads, seq_q, seq_k = sizes
    dim, value_dim = dims
    shapes = ((heads, seq_q, dim), (kv_heads, seq_k, dim), (kv_heads, seq_k, value_dim))
    which = dice.choice(((0, 1, 2), (0,), (1, 2), (1,), (2,)))
    made = []
    for number, (count, length, width) in enumerate(shapes):
        plain = number not in which and layout != "expanded"
        made.append(
            _one(dice, "contiguous" if plain else layout, batch, count, length, width, number)
        )
    return tuple(made)


def _one(
    dice: random.Random, layout: str, batch: int, heads: int, length: int, dim: int, number: int
) -> torch.Tensor:
    if layout == "bshd":
        return _empty(batch, length, heads, dim).transpose(1, 2)
    if layout == "sbhd":
        return _empty(length, batch, heads, dim).permute(1, 2, 0, 3)
    if layout == "packed":
        return _empty(batch, length, 3, heads, dim).permute(2, 0, 3, 1, 4)[number]
    if layout == "packed sbhd":
        return _empty(length, batch, 3, heads, dim).permute(2, 1, 3, 0, 4)[number]
    if layout == "expanded" and number > 0:
        one = _empty(batch, 1, length, dim)
        return one.expand(batch, heads, length, dim)
    if layout == "wide rows":
        return _empty(batch, heads, length, dim * dice.choice((2, 4, 1000)))[..., :dim]
    if layout == "long buffer":
        return _empty(batch, heads, length + dice.choice((1, 64, 10**5)), dim)[:, :, :length]
    return _empty(batch, heads, length, dim)


def _mask(
    dice: random.Random, sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> Optional[torch.Tensor]:
    batch, heads, seq_q, seq_k = sizes
    shape = {
        "rows": (seq_q, seq_k),
        "heads": (1, heads, seq_q, seq_k),
        "batch": (batch, 1, seq_q, seq_k),
        "full": (batch, heads, seq_q, seq_k),
        "padding": (batch, 1, 1, seq_k),
        "one row": (1, seq_k),
    }[dice.choice(MASKS)]
    boolean = dice.random() < 0.4
    itemsize = 1 if boolean else dtype.itemsize
    if torch.Size(shape).numel() * itemsize > MEMORY:
        return None
    kind = torch.bool if boolean else dtype
    way = dice.random()
    if way < 0.2:
        wider = _empty(*shape[:-1], seq_k + dice.choice((1, 3, 8)))
        mask = wider[..., :seq_k]
    elif way < 0.35 and len(shape) == 4:
        narrow = [1 if dice.random() < 0.5 else size for size in shape[:-1]]
        mask = _empty(*narrow, seq_k).expand(shape)
    else:
        mask = _empty(*shape)
    return _as(mask, kind)


def _empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another dtype, lying in memory as it does."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")


def _want_grad(tensor: torch.Tensor) -> None:
    tensor.requires_grad_()


def _bytes(drawn: Drawn) -> int:
    """What the tensors take, with a gradient for each that wants one, and a copy of the mask."""
    total = 0
    for tensor in drawn.tensors:
        held = 1
        for size, stride in zip(tensor.shape, tensor.stride()):
            held *= size if stride else 1
        wants = tensor.requires_grad
        total += held * tensor.itemsize + (tensor.numel() * tensor.itemsize if wants else 0)
    if drawn.mask is not None and drawn.mask.requires_grad:
        batch, heads, seq_q = drawn.query.shape[:3]
        total += batch * heads * seq_q * drawn.key.shape[2] * drawn.mask.itemsize
    return total + drawn.query.numel() * drawn.query.itemsize
