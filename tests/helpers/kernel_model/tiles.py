"""The tiles that the kernels may be launched with, over all GPUs that torch supports.

A rule that depends on the tile is a fault if it is one with any of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    rows: int
    keys: int


class BackwardTile(NamedTuple):
    rows: int
    keys: int
    #: The gradients of key and value stay in registers, so no workspace holds them.
    in_registers: bool


def efficient_forward(max_dim: int) -> tuple[Tile, ...]:
    """wheel 2.9.1 mem_eff_attention/kernels/cutlassF.h:27-279, the same list in 2.14.1.

    Up to 64: 64x64. Up to 128: 64x128 on sm80 and later, 32x128 before. Above: 32x128.
    """
    if max_dim <= 64:
        return _FORWARD_64
    return _FORWARD_128 if max_dim <= 128 else _FORWARD_ANY


def efficient_backward(max_dim: int, itemsize: int, dropout: bool) -> tuple[BackwardTile, ...]:
    """wheel 2.9.1 mem_eff_attention/kernels/cutlassB.h:228-244 for sm80 bfloat16, and the like
    lists for the other types and GPUs; kernel_backward.h:250 says which keep the gradients in
    registers.
    """
    if itemsize == 2:
        if max_dim <= 64:
            return _BACKWARD_HALF_64
        if max_dim <= 128:
            return _BACKWARD_HALF_128
        return _BACKWARD_ANY
    if max_dim <= 64:
        # 32x32 is the dropout kernel of GPUs before sm70 (cutlassB.h, gone in 2.14).
        return _BACKWARD_FLOAT_64_DROPOUT if dropout else _BACKWARD_FLOAT_64
    return _BACKWARD_ANY


def flash_forward(dim: int, dropout: bool, causal: bool) -> tuple[Tile, ...]:
    """FA@v2.5.6 csrc/flash_attn/src/flash_fwd_launch_template.h:148-343 (sm8x differs)."""
    if dim <= 64:
        return (Tile(128, 64),) if dropout and dim > 32 else (Tile(128, 128),)
    if dim <= 96:
        return (Tile(128, 64), Tile(64, 64)) if causal else (Tile(128, 64),)
    if dim <= 128:
        if dropout:
            return (Tile(128, 32),)
        return (Tile(128, 64), Tile(64, 64)) if causal else (Tile(128, 64), Tile(128, 32))
    if dim <= 160:
        return (Tile(128, 32), Tile(64, 64)) if causal else (Tile(128, 32), Tile(128, 64))
    if dim <= 192:
        return (Tile(64, 64),) if dropout else (Tile(128, 64),)
    return (Tile(128, 64), Tile(64, 64))


def flash_split_keys(dim: int) -> int:
    """FA@979702c8 flash_fwd_launch_template.h:169; flash_api.cpp:305 uses the same."""
    if dim <= 64:
        return 256
    return 128 if dim <= 128 else 64


def flash_backward_rows(dim: int) -> tuple[int, ...]:
    """FA@979702c8 csrc/flash_attn/src/flash_bwd_launch_template.h:136-326.

    64 rows for head dim 33..64 where a block has less than 144 KiB of shared memory (sm86, sm89,
    sm120).
    """
    if dim <= 32:
        return (128,)
    return (128, 64) if dim <= 64 else (64,)


_FORWARD_64 = (Tile(64, 64),)
_FORWARD_128 = (Tile(64, 128), Tile(32, 128))
_FORWARD_ANY = (Tile(32, 128),)
_BACKWARD_HALF_64 = (BackwardTile(64, 64, True),)
_BACKWARD_HALF_128 = (
    BackwardTile(128, 128, True),
    BackwardTile(128, 64, True),
    BackwardTile(64, 64, False),
)
_BACKWARD_ANY = (BackwardTile(128, 64, False), BackwardTile(64, 64, False))
_BACKWARD_FLOAT_64 = (BackwardTile(64, 64, False),)
_BACKWARD_FLOAT_64_DROPOUT = (BackwardTile(64, 64, False), BackwardTile(32, 32, False))
