"""The shape that kills FlashAttention's backward, on your GPU: guarded, or left to fail.

    python examples/train_cuda.py               # runs through
    python examples/train_cuda.py --unguarded   # in a process of its own, since the fault ruins it

At the default 400x4x10496x128 in bfloat16 one tensor has 4.0 GiB. Query, key and value are one
tensor here, and only the query wants a gradient. Guarded, the step holds at most the tensor, the
output, and what the backward of one half needs (gradients, 6 GiB, the output's gradient, 2 GiB, and
workspace, 4 GiB): about 20 GiB, which a 24 GiB card has. Unguarded the backward takes the whole at
once, about 32 GiB: a smaller card runs out of memory before it shows the fault. There, take another
shape that was measured to fail, with 2.0 GiB a tensor and about 20 GiB unguarded:

    python examples/train_cuda.py --batch 800 --heads 8 --head-dim 16 --unguarded

torch 2.11 has the bound from a batch of 401 on, and torch from 2.12 on does not have it:
there the guard leaves the call whole, and --as-torch 2.9.0 splits it as on that release.
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
    shape = (options.batch, options.heads, options.seq, options.head_dim)
    if options.child:
        train(shape, contextlib.nullcontext())
    elif options.unguarded:
        show_the_fault()
    else:
        print(check(*shape, backends=["flash"], torch_version=options.as_torch), end="\n\n")
        guard = SDPAGuard(torch_version=options.as_torch)
        train(shape, guard)
        print(f"\n{guard.report}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one attention layer at a failing shape.")
    parser.add_argument("--batch", type=int, default=400)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=10496)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--unguarded", action="store_true", help="show the fault")
    parser.add_argument(
        "--as-torch", metavar="RELEASE", help="whose limits count; yours unless given"
    )
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
    peak = torch.cuda.max_memory_allocated() / 2**30
    finite = all(bool(part.isfinite().all()) for part in tokens.grad.split(16))
    print(f"backward done, gradient finite: {finite}, peak memory {peak:.1f} GiB", flush=True)
    if not finite:
        sys.exit("Error: the gradient is not finite.")


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
