"""Training and generation by libraries above torch, each a row of the README's table.

The rows are there on every torch: a library is only imported when its route runs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from helpers.route import Route, Tensors

LAYERS, BATCH, STEPS, NEW_TOKENS = 2, 5, 3, 4


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, 64, shape, generator=torch.Generator().manual_seed(0))


def left_padding() -> torch.Tensor:
    """An attention mask in which each prompt of a batch has another length."""
    return (torch.arange(8) >= torch.arange(BATCH)[:, None]).long()


def llama() -> Any:
    """Four query heads share two key/value heads; no dropout."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=None,  # every prompt goes on to the last token
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=LAYERS,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    return transformers.GPT2LMHeadModel(config)


def weights(model: nn.Module) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach()


# --- transformers -------------------------------------------------------------------------------


def model_step(padded: bool, reentrant: bool) -> Tensors:
    """One training step with gradient checkpointing: the loss and every weight's gradient."""
    model = llama().train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()  # or a reentrant checkpoint gives its layer no gradient
    inputs = tokens(BATCH, 8)
    mask = left_padding() if padded else torch.ones_like(inputs)
    labels = inputs.where(mask.bool(), -100)
    loss = model(inputs, attention_mask=mask, labels=labels).loss
    loss.backward()
    return loss.detach(), *(weight.grad for weight in model.parameters())


def generate(model: Any, **options: Any) -> Tensors:
    """The tokens that a greedy search finds, and the logits it chose them by."""
    found = model.eval().generate(
        tokens(BATCH, 8),
        attention_mask=left_padding(),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        use_cache=True,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return found.sequences, *found.logits


def transformers_trainer(**options: Any) -> Tensors:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arguments = transformers.TrainingArguments(
        output_dir="trainer",
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        optim="sgd",
        learning_rate=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    examples = [{"input_ids": row, "labels": row} for row in tokens(STEPS * BATCH, 8)]
    trainer = transformers.Trainer(llama(), arguments, train_dataset=examples)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return torch.tensor(losses), weights(trainer.model)


# --- Loops --------------------------------------------------------------------------------------


def accelerate_loop() -> Tensors:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = llama().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(tokens(STEPS * BATCH, 8)), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for (inputs,) in loader:
        loss = model(inputs, labels=inputs).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses), weights(model)


def lightning_trainer() -> Tensors:
    """Training steps, and as many of validation, which Lightning does in inference mode."""
    lightning = pytest.importorskip("lightning")
    losses: list[torch.Tensor] = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(16, 3 * 16)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            (x,) = batch
            query, key, value = self.project(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
            loss = (found - x).square().mean()
            losses.append(loss.detach())
            return loss

        validation_step = training_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    model = Model()
    inputs = torch.randn(STEPS * BATCH, 4, 16)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = [DataLoader(TensorDataset(inputs), batch_size=BATCH) for _ in range(2)]
    trainer.fit(model, *loaders)
    return torch.stack(losses), weights(model)


LIBRARIES = [
    # Split in the forward and in the recompute.
    Route(
        "`transformers`: grouped-query attention, `checkpoint(use_reentrant=True)`",
        lambda: model_step(padded=False, reentrant=True),
        2 * LAYERS,
    ),
    Route(
        "`transformers`: grouped-query attention, `checkpoint(use_reentrant=False)`",
        lambda: model_step(padded=False, reentrant=False),
        2 * LAYERS,
    ),
    Route(
        "`transformers`: a padded batch, `checkpoint(use_reentrant=True)`",
        lambda: model_step(padded=True, reentrant=True),
        2 * LAYERS,
    ),
    Route(
        "`transformers`: a padded batch, `checkpoint(use_reentrant=False)`",
        lambda: model_step(padded=True, reentrant=False),
        2 * LAYERS,
    ),
    Route(
        "`transformers`: `generate` with a growing cache",
        lambda: generate(gpt2()),
        NEW_TOKENS * LAYERS,
    ),
    Route(
        "`transformers`: `generate` with a static cache",
        lambda: generate(llama(), cache_implementation="static"),
        NEW_TOKENS * LAYERS,
    ),
    Route("`transformers.Trainer`", transformers_trainer, STEPS * LAYERS),
    Route(
        "`transformers.Trainer` with `gradient_checkpointing=True`",
        lambda: transformers_trainer(gradient_checkpointing=True),
        2 * STEPS * LAYERS,
    ),
    Route("`accelerate.Accelerator`", accelerate_loop, STEPS * LAYERS),
    Route("`lightning.Trainer`, training and validation", lightning_trainer, 2 * STEPS),
]
