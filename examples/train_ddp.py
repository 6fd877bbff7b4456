"""DistributedDataParallel training, guarded by a variable in the environment and by nothing else.

Run it without and with the variable, and compare: the losses are the same, and with it both ranks
split their attention calls. It trains over NCCL where each rank has a GPU, else over Gloo on CPUs.

    torchrun --nproc-per-node 2 examples/train_ddp.py
    SDPA_GUARD=1 torchrun --nproc-per-node 2 examples/train_ddp.py
"""

from __future__ import annotations

import dataclasses
import os
import sys
from types import ModuleType
from typing import Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, LENGTH, WIDTH, HEADS = 12, 8, 16, 32, 4


def main() -> None:
    if not dist.is_torchelastic_launched():
        sys.exit("Start this example with torchrun --nproc-per-node 2.")
    torch.set_num_threads(1)  # the model is too small to share between threads
    device, backend = place()
    dist.init_process_group(backend)
    guard = enabled_guard()
    if guard and device.type == "cpu":
        lower_the_limits(guard)
    losses = " ".join(f"{loss:.4f}" for loss in train(device))
    rank = dist.get_rank()
    # One write for both lines: the ranks share their standard output.
    print(f"rank {rank}: losses {losses}\nrank {rank}: {describe(guard)}\n", end="", flush=True)
    dist.barrier()  # over Gloo, a rank that leaves before the others are done may abort
    dist.destroy_process_group()


def place() -> tuple[torch.device, str]:
    """The device of this rank, and the backend by which ranks on such devices talk."""
    local_rank, ranks_here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() < ranks_here:
        return torch.device("cpu"), "gloo"
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device, "nccl"


def enabled_guard() -> Optional[ModuleType]:
    """The package, if SDPA_GUARD enabled it: nothing here imports it."""
    guard = sys.modules.get("sdpa_guard")
    return guard if guard and guard.is_enabled() else None


def lower_the_limits(guard: ModuleType) -> None:
    """Let a training this small show some splits: its calls are over no real limit."""
    lowered = [dataclasses.replace(limit, bound=2) for limit in guard.LIMITS if limit.id == "F2b"]
    guard.enable(limits=lowered, device_types=("cpu",))
    if dist.get_rank() == 0:
        print("lowered limits for the CPU: 2 batch entries a call", flush=True)


def describe(guard: Optional[ModuleType]) -> str:
    if guard is None:
        return "the guard is off"
    seen = guard.report()
    return f"the guard is on, {seen.split} of {seen.calls} attention calls became {seen.chunks}"


def train(device: torch.device) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(1 + dist.get_rank())  # each rank has data of its own
    losses = []
    for _ in range(STEPS):
        sequences = torch.randn(BATCH, LENGTH, WIDTH, generator=data).to(device)
        sums = sequences.sum(1) / LENGTH**0.5
        loss = nn.functional.mse_loss(model(sequences), sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Model(nn.Module):
    """Two layers of a transformer that learn to add up a sequence. There is no dropout."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(sequences).mean(1))


if __name__ == "__main__":
    main()
