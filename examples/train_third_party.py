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
from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch
import transformers
from sklearn.datasets import load_digits

from sdpa_guard import LIMITS, SDPAGuard

EPOCHS, BATCH = 8, 64
TRAINING_IMAGES = 1472  # 23 whole batches; the other 325 images test
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
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    training = Digits(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES])
    testing = Digits(images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:])

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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
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
    losses, weights = (distance(plain[i], guarded[i]) for i in range(2))
    print(f"  {report.split} of {report.calls} attention calls became {report.chunks}")
    print(f"  largest difference to the run without the guard: losses {losses:.1e}, ", end="")
    print(f"final weights {weights:.1e}")
    if report.split == 0:
        sys.exit("No attention call was split.")
    if not max(losses, weights) <= TOLERANCE:
        sys.exit(f"The two runs differ by more than {TOLERANCE}.")


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    return (one - other).abs().max().item()


if __name__ == "__main__":
    main()
