"""A training step at shapes that fail on a GPU, rehearsed on meta tensors: no GPU, no memory.

The shapes were measured, forward and backward in bfloat16, on torch 2.9.0 with FlashAttention:
https://github.com/PriorLabs/TabPFN/issues/1184

    python examples/rehearse_on_meta.py
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import SDPAGuard

#: (batch, heads, query length, head dim), and whether the backward ran through.
MEASURED = [
    ((8, 4, 65536, 128), True),
    ((200, 8, 10496, 16), True),
    ((400, 8, 10496, 16), True),
    ((400, 8, 10496, 32), True),
    ((400, 4, 10368, 128), True),
    ((799, 8, 10496, 32), True),
    ((512, 4, 8192, 128), True),
    ((800, 8, 10496, 16), False),
    ((800, 8, 10496, 32), False),
    ((400, 8, 10496, 64), False),
    ((400, 4, 10496, 128), False),
    ((800, 4, 5248, 128), False),
    ((200, 4, 20992, 128), False),
    ((1600, 8, 10496, 16), False),
    ((3200, 8, 10496, 16), False),
]


def training_step(shape: tuple[int, int, int, int]) -> dict[str, object]:
    """One layer of self-attention, forward and backward; what the guard reported of it."""
    batch, heads, length, head_dim = shape
    width = heads * head_dim
    with torch.device("meta"), SDPAGuard(torch_version="2.9.0") as guard:
        project = torch.nn.Linear(width, 3 * width, dtype=torch.bfloat16)
        tokens = torch.empty(batch, length, width, dtype=torch.bfloat16)
        qkv = project(tokens).unflatten(-1, (3, heads, head_dim)).permute(2, 0, 3, 1, 4)
        scaled_dot_product_attention(*qkv).sum().backward()
    return guard.report.as_dict()


def main() -> None:
    print("counted / bound is that of F1, the index that FlashAttention's backward computes.\n")
    header = ("batch x heads x length x dim", "counted / bound", "unguarded", "with the guard")
    print("{:28}  {:>15}  {:9}  {}".format(*header))
    wrong = 0
    for shape, ran_through in MEASURED:
        report = training_step(shape)
        plan = "one call"
        if report["split"]:
            sizes = report["sites"][0]["plan"]["sizes"]
            plan = f"{len(sizes)} calls of {' or '.join(map(str, sorted(set(sizes))))} entries"
        words = "x".join(map(str, shape))
        outcome = "ran" if ran_through else "failed"
        print(f"{words:28}  {report['ratios']['F1']:15.2%}  {outcome:9}  {plan}")
        wrong += bool(report["split"]) == ran_through
    if wrong:
        sys.exit(f"{wrong} of {len(MEASURED)} shapes were judged against the measurement.")
    print(f"\nAll {len(MEASURED)} are split exactly where the unguarded step failed.")


if __name__ == "__main__":
    main()
