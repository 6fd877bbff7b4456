"""A vision transformer from the transformers library, trained with split attention calls on a CPU.

It learns scikit-learn's handwritten digits twice from the same start: as it is, and under
SDPAGuard with one limit lowered so far that every training step is over it. Both runs must agree.

    pip install transformers scikit-learn
    python examples/train_third_party.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import warnings
from typing import NamedTuple, Optional

import torch
import transformers
from sklearn.datasets import load_digits

from sdpa_guard import LIMITS, SDPAGuard

EPOCHS, BATCH = 8, 64
TESTING_IMAGES = 325  # the others make 23 whole batches
#: The largest difference that counts as rounding.
TOLERANCE = 1e-4

#: FlashAttention's backward counts 2**20 for a batch of 64 here: four times this bound.
LOWERED = tuple(
    dataclasses.replace(limit, bound=2**18) if limit.id == "F1" else limit for limit in LIMITS
)


class Digits(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor


class Run(NamedTuple):
    losses: torch.Tensor
    weights: torch.Tensor
    accuracy: float


def main() -> None:
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)  # of names that transformers will change
    torch.set_num_threads(1)  # the model is too small to share between threads
    training, testing = read_digits()

    print("Without the guard:")
    plain = train(training, testing)
    describe(plain)

    print("\nWith the guard, and a limit low enough to split every training step:")
    guard = SDPAGuard(limits=LOWERED, device_types=("cpu",))
    guarded = train(training, testing, guard)
    describe(guarded)
    compare(plain, guarded, guard)
    print(f"\n{guard.report}")

    print("\nWith the guard and gradient checkpointing, which calls attention in the backward too:")
    guard = SDPAGuard(limits=LOWERED, device_types=("cpu",))
    guarded = train(training, testing, guard, checkpointing=True)
    describe(guarded)
    compare(plain, guarded, guard)


def read_digits() -> tuple[Digits, Digits]:
    """Images of 8x8 pixels from -1 to 1: those to train with, and those to test with."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 8 - 1
    labels = torch.tensor(labels)[order]
    testing, training = slice(TESTING_IMAGES), slice(TESTING_IMAGES, None)
    return Digits(images[training], labels[training]), Digits(images[testing], labels[testing])


def train(
    training: Digits,
    testing: Digits,
    guard: Optional[SDPAGuard] = None,
    checkpointing: bool = False,
) -> Run:
    torch.manual_seed(0)
    model = vision_transformer()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with guard or contextlib.nullcontext():
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(training.images)).split(BATCH):
                loss = model(training.images[chosen], labels=training.labels[chosen]).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return Run(torch.stack(losses), weights, accuracy(model, testing))


def vision_transformer() -> transformers.ViTForImageClassification:
    """A small ViT with random weights: an 8x8 image is 16 patches of 2x2. It has no dropout."""
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        qkv_bias=False,  # a key bias has no gradient but rounding, which AdamW would magnify
        num_labels=10,
        attn_implementation="sdpa",
    )
    return transformers.ViTForImageClassification(config).train()


@torch.no_grad()
def accuracy(model: transformers.ViTForImageClassification, testing: Digits) -> float:
    guesses = model.eval()(testing.images).logits.argmax(-1)
    return (guesses == testing.labels).float().mean().item()


def describe(run: Run) -> None:
    first, *_, last = run.losses.tolist()
    print(f"  loss {first:.3f} -> {last:.3f} in {len(run.losses)} steps")
    print(f"  accuracy on unseen digits: {run.accuracy:.1%}")


def compare(plain: Run, guarded: Run, guard: SDPAGuard) -> None:
    """Say how far apart the two runs are; leave with a message if that is too far."""
    report = guard.report
    losses = distance(plain.losses, guarded.losses)
    weights = distance(plain.weights, guarded.weights)
    print(f"  {report.split} of {report.calls} attention calls became {report.chunks}")
    print(f"  largest difference to the run without the guard: losses {losses:.1e}, ", end="")
    print(f"final weights {weights:.1e}")
    if report.split == 0:
        sys.exit("No attention call was split.")
    if not max(losses, weights) <= TOLERANCE:
        sys.exit(f"The two runs differ by more than {TOLERANCE}.")


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()


if __name__ == "__main__":
    main()
