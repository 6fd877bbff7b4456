"""The shape that kills FlashAttention's backward, on your GPU: guarded, or in all its fury.

    python examples/train_cuda.py               # runs through
    python examples/train_cuda.py --unguarded   # in a process of its own, since the fault ruins it

At the default 400x4x10496x128 in bfloat16 one tensor has 4.0 GiB. Query, key and value are one
tensor here, and only the query wants a gradient. Guarded, the step holds at most the tensor, its
gradient, the output, and what the backward of one half needs (gradients, 6 GiB, the output's
gradient, 2 GiB, and workspace, 4 GiB): about 20 GiB. Unguarded the backward takes the whole at
once, about 32 GiB: a smaller card runs out of memory before it shows the fault. torch from 2.12 on
has no such bound.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import SDPAGuard, check


def main() -> None:
    options = parse()
    if not torch.cuda.is_available():
        sys.exit("This example needs a CUDA GPU; examples/rehearse_on_meta.py does without.")
    shape = (options.batch, options.heads, options.length, options.head_dim)
    if options.child:
        train(shape, contextlib.nullcontext())
    elif options.unguarded:
        show_the_fault()
    else:
        print(check(*shape, backends=["flash"]), end="\n\n")
        guard = SDPAGuard()
        train(shape, guard)
        print(f"\n{guard.report}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one attention layer at a failing shape.")
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=10496)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--unguarded", action="store_true", help="show the fault")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def train(
    shape: tuple[int, int, int, int], scope: contextlib.AbstractContextManager[object]
) -> None:
    """One forward and backward in FlashAttention."""
    tokens = torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    with scope, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        memory = tokens.detach()
        loss = scaled_dot_product_attention(tokens, memory, memory).sum()
        print(f"forward done, loss {loss.item():.4g}", flush=True)
        loss.backward()
        torch.cuda.synchronize()
    # The last entry is the one that lies past the bound.
    finite = bool(tokens.grad[-1].isfinite().all())
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"backward done, last gradient finite: {finite}, peak memory {peak:.1f} GiB", flush=True)


def show_the_fault() -> None:
    command = [sys.executable, *sys.argv, "--child"]
    child = subprocess.run(command, capture_output=True, text=True)
    print(child.stdout, end="")
    if child.returncode == 0:
        print(f"torch {torch.__version__} ran the unguarded step through.")
    else:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        lines = [line for line in child.stderr.splitlines() if "Error" in line] or [last]
        print(f"The unguarded process ended with status {child.returncode}:\n{lines[0]}")


if __name__ == "__main__":
    main()
