"""The known bounds of torch's FlashAttention kernels, one entry each.

Where a kernel computes a number in several ways, the entry counts the one that is never too small.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from . import counts
from .backends import FLASH
from .call import BATCH, HEADS, ROWS
from .limit import BACKWARD, BOTH, FORWARD, GRID, INT32, Limit

_FA = "https://github.com/Dao-AILab/flash-attention"
_PT = "https://github.com/pytorch/pytorch"

LIMITS: tuple[Limit, ...] = (
    Limit(
        id="F1",
        name="flash backward index",
        backend=FLASH,
        pass_=BACKWARD,
        formula="batch * round_up(seq_q, 128) * heads * padded_head_dim",
        counted=counts.flash_workspace,
        bound=2**31,
        cures=(BATCH, HEADS, ROWS),
        versions=SpecifierSet(">=2.2,<2.11"),
        effect="the backward dies with an illegal memory access, or returns wrong gradients",
        evidence=("measured", "source", "binary"),
        source="https://github.com/PriorLabs/TabPFN/issues/1184",
    ),
    Limit(
        id="F1p",
        name="flash backward batch offset",
        backend=FLASH,
        pass_=BACKWARD,
        formula="(batch - 1) * round_up(seq_q, 128) * heads * padded_head_dim",
        counted=counts.flash_last_entry,
        bound=INT32,
        cures=(BATCH, HEADS, ROWS),
        versions=SpecifierSet(">=2.11,<2.12"),
        effect="the backward dies with an illegal memory access, or returns wrong gradients",
        evidence=("source", "binary"),
        source=f"{_FA}/pull/2260",
    ),
    Limit(
        id="F1v",
        name="flash varlen backward index",
        backend=FLASH,
        pass_=BACKWARD,
        formula="(rows + 128 * batch) * heads * padded_head_dim if nested else 0",
        # Nested and jagged calls are passed through; a plain call never reaches the varlen kernel.
        counted=counts.nothing,
        bound=2**31,
        cures=(),
        versions=SpecifierSet(">=2.2,<2.12"),
        effect="not guarded: nested calls pass through; their backward dies as with F1",
        evidence=("source",),
        source=f"{_FA}/pull/2260",
    ),
    Limit(
        id="F2b",
        name="flash grid, batch",
        backend=FLASH,
        pass_=BOTH,
        formula="batch",
        counted=counts.batch,
        bound=GRID,
        cures=(BATCH,),
        versions=SpecifierSet(">=2.2"),
        effect="the kernel cannot be launched: invalid configuration argument",
        evidence=("measured", "source"),
        source=f"{_PT}/issues/146704",
    ),
    Limit(
        id="F2h",
        name="flash grid, heads",
        backend=FLASH,
        pass_=BOTH,
        formula="kv_heads if seq_q == 1 and not (backward or dropout) else heads",
        counted=counts.flash_grid_heads,
        bound=GRID,
        cures=(HEADS,),
        versions=SpecifierSet(">=2.2"),
        effect="the kernel cannot be launched: invalid configuration argument",
        evidence=("measured", "source"),
        source=f"{_FA}/issues/1812",
    ),
    Limit(
        id="F4a",
        name="flash forward row sums",
        backend=FLASH,
        pass_=FORWARD,
        formula="batch * heads * seq_q",
        counted=counts.row_sums,
        bound=INT32,
        cures=(BATCH, HEADS, ROWS),
        versions=SpecifierSet(">=2.2"),
        effect="illegal memory access or wrong row sums",
        evidence=("source", "inferred"),
        source=f"{_FA}/blob/14c37795/csrc/flash_attn/src/flash_fwd_kernel.h",
    ),
    Limit(
        id="F4b",
        name="flash backward row sums",
        backend=FLASH,
        pass_=BACKWARD,
        formula="batch * heads * round_up(seq_q, 128)",
        counted=counts.padded_row_sums,
        bound=INT32,
        cures=(BATCH, HEADS, ROWS),
        versions=SpecifierSet(">=2.2"),
        effect="out of reach: the workspace alone would need 256 GiB first",
        evidence=("source", "inferred"),
        source=f"{_FA}/blob/14c37795/csrc/flash_attn/src/flash_bwd_kernel.h",
    ),
)
