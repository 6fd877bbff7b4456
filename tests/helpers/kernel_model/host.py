"""What torch's host code refuses, and the grids that CUDA refuses.

PT is pytorch/pytorch, aten/src/ATen/native/transformers/cuda.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from . import flash_forward
from .fault import ERROR, LAUNCH, Fault
from .launch import Launch, Strides
from .lines import Line

#: CUDA's limit on the y and z axes of a grid.
GRID_AXIS = 65535
_INT32_MAX = (1 << 31) - 1


def chunk_batch(launch: Launch, line: Line) -> int:
    """The batch of one launch of the efficient kernels: cut in C++ since 2.8.

    pytorch#154029 (forward), pytorch#154663 (backward); PT attention_backward.cu@00afd8f2.
    """
    return min(launch.batch, GRID_AXIS) if line >= Line.V2_8 else launch.batch


def flash_forward_grid(launch: Launch) -> tuple[int, int]:
    """(entries, heads): FA@979702c8 flash_fwd_launch_template.h:64, the same at every line."""
    return launch.batch, flash_forward.problem(launch).heads


def flash_backward_grid(launch: Launch) -> tuple[int, int]:
    """(entries, heads): FA@979702c8 flash_bwd_launch_template.h:75 and :82; it never swaps."""
    return launch.batch, launch.heads


def flash_faults(launch: Launch, line: Line) -> Iterator[Fault]:
    if line >= Line.V2_15:
        # The selector sends batches or heads over 65535 elsewhere (strings of the 2.15 wheel, as
        # noted by others): such a launch does not exist.
        return
    grids = [("forward", flash_forward_grid(launch))]
    if launch.needs_backward:
        grids.append(("backward", flash_backward_grid(launch)))
    for rule, axis, name in (("F2b", 0, "entries"), ("F2h", 1, "heads")):
        for pass_, grid in grids:
            if grid[axis] > GRID_AXIS:
                yield Fault(rule, LAUNCH, f"{pass_} grid of {grid[axis]} {name}")
                break


def efficient_faults(launch: Launch, line: Line, bias: Optional[Strides]) -> Iterator[Fault]:
    if line <= Line.V2_14:
        # wheels 2.8.0..2.14.1 kernel_forward.h getBlocksGrid (2.9.1:335-340), kernel_backward.h
        # getBlocksGrid (2.9.1:850-852): heads on y, entries on z.
        if chunk_batch(launch, line) > GRID_AXIS:
            yield Fault("E1", LAUNCH, f"grid of {launch.batch} entries")
        if launch.heads > GRID_AXIS:
            yield Fault("E4", LAUNCH, f"grid of {launch.heads} heads")
    if launch.batch > GRID_AXIS and Line.V2_8 <= line <= Line.V2_14:
        yield from _chunking(launch)
    yield from _strides(launch, bias)


def _chunking(launch: Launch) -> Iterator[Fault]:
    """PT attention_backward.cu@00afd8f2, _scaled_dot_product_efficient_attention_backward_cuda."""
    if launch.dropout:
        # The forward has the same check (its message: no valid seed and offset).
        yield Fault("E2", ERROR, f"dropout with {launch.batch} entries")
    if not launch.needs_backward:
        return
    if launch.mask_requires_grad:
        # The gradient of a chunk has 65535 entries or the rest of them; it is added into one for
        # all, which no chunk's shape broadcasts to.
        yield Fault("E3", ERROR, f"mask gradient with {launch.batch} entries")
    q_sizes = (launch.batch, launch.heads, launch.seq_q)
    k_sizes = (launch.batch, launch.kv_heads, launch.seq_k)
    for name, wanted, sizes, strides in (
        ("query", launch.query_requires_grad, q_sizes, launch.query),
        ("key", launch.key_requires_grad, k_sizes, launch.key),
        ("value", launch.value_requires_grad, k_sizes, launch.value),
    ):
        # The gradient is made with the input's own strides and copied into, chunk by chunk.
        if wanted and any(n > 1 and stride == 0 for n, stride in zip(sizes, strides)):
            yield Fault("E3b", ERROR, f"gradient of an expanded {name}")
            return


def _strides(launch: Launch, bias: Optional[Strides]) -> Iterator[Fault]:
    """E11: ASSIGN_CHECK_OVERFLOW, which wants each stride below the largest int32.

    Macro: wheel 2.9.1 gemm_kernel_utils.h:77-82. Uses: PT attention.cu,
    _efficient_attention_forward (q, k, v strideM and strideH, o strideM, bias strideM are
    int32). Raw strides, also of dimensions of size one. The backward checks no more than this.
    """
    for name, stride in (
        ("query row", launch.query.row),
        ("key row", launch.key.row),
        ("value row", launch.value.row),
        ("query head", launch.query.head),
        ("key head", launch.key.head),
        ("value head", launch.value.head),
        ("output row", launch.heads * launch.value_dim),
        ("bias row", 0 if bias is None else bias.row),
    ):
        if stride >= _INT32_MAX:
            yield Fault("E11", ERROR, f"{name} stride {stride}")
            return
