"""What the guard adds to a training step in which nothing is split."""

from __future__ import annotations

from typing import Callable

import torch
from torch import nn

from .calls import process_wide, scoped
from .timing import Result, Variant, ratio, time_calls

TURNS = 151
Step = Callable[[], object]


def encoder() -> Step:
    """torch's own encoder."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return _training(nn.TransformerEncoder(layer, 4), torch.randn(16, 64, 128))


def vit() -> Step:
    """A vision transformer of ``transformers``."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=128,
        num_attention_heads=4,
        intermediate_size=256,
        num_hidden_layers=4,
        image_size=64,
        patch_size=8,
    )
    return _training(ViTModel(config), torch.randn(16, 3, 64, 64))


def gpt2() -> Step:
    """GPT-2 of ``transformers``."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=128, n_layer=4, n_head=4, n_positions=64, vocab_size=1000)
    return _training(GPT2Model(config), torch.randint(1000, (16, 64)))


MODELS = {"nn.TransformerEncoder": encoder, "ViT": vit, "GPT-2": gpt2}


def training_steps() -> list[Result]:
    """Eager training steps."""
    results = []
    for name, make in MODELS.items():
        torch.manual_seed(0)
        step = make()
        variants = {
            "unguarded": Variant(step),
            "scoped": Variant(step, scoped),
            "process-wide": Variant(step, process_wide),
        }
        taken = time_calls(variants, 1, TURNS)
        for what, reach in (("scoped", 1.05), ("process-wide", 1.01)):
            figure = ratio(taken, what, "unguarded")
            results.append(Result("step", f"{name}, {what}", "unguarded", figure, "x", reach))
    return results


def _training(model: nn.Module, data: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        out = model(data)
        hidden = out if isinstance(out, torch.Tensor) else out.last_hidden_state
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()

    return step
