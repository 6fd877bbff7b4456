"""Functions to compile, and what became of them."""

from __future__ import annotations

from typing import Callable, Optional

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from helpers.route import Tensors
from helpers.torch_inside import aot_backend


def attend(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x).sin()


class Attend(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def attention_module() -> Callable[[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    return lambda x: layer(x, x, x, need_weights=False)[0]


def query(batch: int = 5) -> torch.Tensor:
    return torch.randn(batch, 2, 4, 8, generator=torch.Generator().manual_seed(0))


def sequence(batch: int = 5) -> torch.Tensor:
    return query(batch).reshape(batch, 4, 16)


_module = attention_module()


def both(x: torch.Tensor, scale: Optional[float] = None) -> torch.Tensor:
    """One compilation of attention called by a function, and by a module that hides it."""
    attended = F.scaled_dot_product_attention(x, x, x, scale=scale).sin()
    return attended + _module(x.reshape(-1, 4, 16)).reshape(x.shape)


#: Attention called by a function, and by a module whose function hides it from a mode.
FUNCTIONS = pytest.mark.parametrize(
    ("function", "inputs"),
    [(attend, query), (_module, sequence)],
    ids=["function", "nn.MultiheadAttention"],
)


def step(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Tensors:
    """The output and the input's gradient."""
    x = x.clone().requires_grad_()
    out = function(x)
    out.sum().backward()
    return out.detach(), x.grad


class Counting:
    """A torch.compile backend that counts the attention kernels in each graph it is given."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._compile = aot_backend(self._forward, runs)

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        return self._compile(graph, inputs)

    def _forward(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        self.counts.append(attention_nodes(graph))
        return runs(graph, inputs)


def runs(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
    from functorch.compile import make_boxed_func

    return make_boxed_func(graph.forward)


def attention_nodes(graph: torch.fx.GraphModule | torch.export.ExportedProgram) -> int:
    names = [str(node.target) for node in graph.graph.nodes]
    return sum("scaled_dot_product" in name and "backward" not in name for name in names)


def batches_at_run_time(run: Callable[[], object]) -> list[int]:
    """The batch sizes of the kernels that run, whoever calls them, once they are compiled."""
    run()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        run()
    return [
        event.input_shapes[0][0]
        for event in profile.events()
        if event.name == "aten::_scaled_dot_product_flash_attention_for_cpu"
    ]
