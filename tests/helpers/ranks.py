"""What one rank does, started by torchrun: every route as it is and under each door, for the tests.

    torchrun -m helpers.ranks FOLDER

Results go to FOLDER/rank0.pt and so on. All runs of a route start from the same weights and data.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import sdpa_guard
from helpers.inside import (
    RUNNING_TORCH,
    Release,
)
from helpers.lowered import HEADS, lowered
from helpers.route import LOWERED
from sdpa_guard import Limit, Report, SDPAGuard
from sdpa_guard.testing import record_calls

if Release(2, 5) <= RUNNING_TORCH:
    from torch.distributed.tensor import Shard, distribute_tensor
else:
    from torch.distributed._tensor import Shard, distribute_tensor

STEPS, BATCH, LENGTH, WIDTH, HEAD_DIM = 3, 5, 6, 64, 8

Results = dict[str, Any]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As many heads as the projections give: a rank may hold only some.
        query, key, value = (
            project(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(query, key, value)
        return x + self.out(attended.transpose(1, 2).flatten(2))


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention())


def train(model: nn.Module, seed: int) -> Results:
    """A few steps, on data of this seed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(BATCH, LENGTH, WIDTH, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {
        "losses": losses,
        "gradients": [whole(parameter.grad) for parameter in model.parameters()],
        "weights": [whole(parameter) for parameter in model.parameters()],
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that all ranks hold together."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


# --- The routes ---------------------------------------------------------------------------------


def data_parallel() -> Results:
    return train(DistributedDataParallel(layers()), seed=dist.get_rank())


def fully_sharded() -> Results:
    if Release(2, 6) <= RUNNING_TORCH:
        from torch.distributed.fsdp import fully_shard
    else:
        from torch.distributed._composable.fsdp import fully_shard

    model = layers()
    for module in (*model, model):
        fully_shard(module, mesh=mesh())
    return train(model, seed=dist.get_rank())


def tensor_parallel() -> Results:
    model = layers()
    for layer in model:
        projections = {name: ColwiseParallel() for name in ("query", "key", "value")}
        parallelize_module(layer, mesh(), {**projections, "out": RowwiseParallel()})
    return train(model, seed=0)


def on_dtensors(mode: Callable[[], Any]) -> Callable[[], Results]:
    return lambda: {f"dim {dim}": attend_on_dtensors(mode, dim) for dim in (0, 1)}


def attend_on_dtensors(mode: Callable[[], Any], dim: int) -> Results:
    """Results sharded by the batch or the heads; what torch says where it cannot shard the call."""
    query = torch.randn(6, 4, LENGTH, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    # On a CPU that is the math path, which alone every torch can shard; the guard sees limits.
    backends = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]
    try:
        with mode(), sdpa_kernel(backends):
            query = distribute_tensor(query, mesh(), [Shard(dim)])
            query.requires_grad_(torch.is_grad_enabled())
            tensors = [scaled_dot_product_attention(query, query, query)]
            if torch.is_grad_enabled():
                tensors[0].sin().sum().backward()
                tensors.append(query.grad)
    except (NotImplementedError, RuntimeError) as refusal:
        return {"said": str(refusal), "tensors": []}
    said = " ".join(str(tensor.placements) for tensor in tensors)
    return {"said": said, "tensors": [whole(tensor) for tensor in tensors]}


def mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


#: Each route, and limits that its calls are over.
ROUTES: dict[str, tuple[Callable[[], Results], Iterable[Limit]]] = {
    "data parallel": (data_parallel, LOWERED),
    "fully sharded": (fully_sharded, LOWERED),
    "tensor parallel": (tensor_parallel, lowered(HEADS, 2)),
    "DTensor, training": (on_dtensors(torch.enable_grad), LOWERED),
    "DTensor, no_grad": (on_dtensors(torch.no_grad), LOWERED),
    "DTensor, inference_mode": (on_dtensors(torch.inference_mode), LOWERED),
}


# --- The doors ----------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(door: str, limits: Iterable[Limit]) -> Iterator[Report]:
    if door == "scoped":
        with SDPAGuard(limits=limits, device_types=("cpu",)) as guard:
            yield guard.report
    else:
        sdpa_guard.enable(limits=limits, device_types=("cpu",))
        try:
            yield sdpa_guard.report()
        finally:
            sdpa_guard.disable()


def compare(run: Callable[[], Results], limits: Iterable[Limit]) -> Results:
    results = {"unguarded": run()}
    for door in ("scoped", "process-wide"):
        with opened(door, limits) as report:
            results[door] = run()
        results[f"{door}, calls"] = (report.calls, report.split, report.chunks)
    with record_calls() as calls:
        run()
    results["queries"] = [call.query for call in calls]
    return results


def lacks_fsdp_on_cpu() -> str:
    """Why this torch cannot shard on a CPU; from 2.6 on, where it is public, it has to."""
    if Release(2, 6) <= RUNNING_TORCH:
        return ""
    try:
        fully_sharded()
    except Exception as refusal:
        cause = str(refusal).partition("\n")[0]
        return f"FSDP2 of torch {RUNNING_TORCH} does not run on a CPU: {cause}"
    return ""


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for name, (run, limits) in ROUTES.items():
        skip = lacks_fsdp_on_cpu() if name == "fully sharded" else ""
        results[name] = {"skip": skip} if skip else compare(run, limits)
    torch.save(results, Path(folder) / f"rank{dist.get_rank()}.pt")
    dist.barrier()  # over Gloo, a rank that leaves before the others are done may abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
