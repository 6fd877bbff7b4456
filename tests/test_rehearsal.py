"""``rehearse``: one step of a whole model, at batch sizes that no machine holds."""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from sdpa_guard import RehearsalError, SDPAGuardError, SDPAGuardWarning, rehearse

HALF = torch.bfloat16


def empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(512, 3 * 512, dtype=HALF)
        self.register_buffer("scale", torch.ones(512, dtype=HALF))

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        qkv = self.project(x * self.scale).unflatten(-1, (3, 4, 128)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(*qkv, **options)


def test_the_failing_shape_does_not_fit_and_the_plan_is_told():
    report = rehearse(Attention, empty(400, 10496, 512), torch_version="2.9.0")
    assert not report.fits
    assert (report.calls, report.split, report.chunks) == (1, 1, 2)
    (site,) = report.as_dict()["sites"]
    assert (site["fullest"]["limit"], site["fullest"]["counted"]) == ("F1", 2149580800)
    assert "2 calls of 200 batch entries" in str(report)


@pytest.mark.parametrize(
    ("batch", "facts"),
    [
        (399, {"torch_version": "2.9.0"}),
        (400, {"torch_version": "2.12.0"}),
        (400, {"torch_version": "2.9.0", "backward": False}),
    ],
)
def test_a_model_that_fits_lists_its_calls_too(batch, facts):
    report = rehearse(Attention, empty(batch, 10496, 512), **facts)
    assert report.fits
    (site,) = report.as_dict()["sites"]
    assert (site["calls"], site["plan"], site["fullest"]["over"]) == (1, None, False)
    assert "fits" in str(report)
    assert max(map(len, str(report).splitlines())) <= 100


def test_the_model_and_its_inputs_stay_as_they_are():
    model = Attention()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.ones(2, 8, 512, dtype=HALF, requires_grad=True)
    rehearse(model, x, is_causal=True)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert x.grad is None


def test_nested_inputs_and_outputs():
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention()

        def forward(self, batch: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
            return {"out": [self.inner(x) for x in batch["xs"]], "note": "no tensor"}

    report = rehearse(Nested, {"xs": [torch.ones(2, 8, 512, dtype=HALF)] * 2})
    assert report.calls == 2


@pytest.mark.parametrize("training", [True, False])
def test_torch_transformers(training):
    model = nn.Transformer(512, 8, 1, 1, dropout=0.0, batch_first=True).to(HALF).train(training)
    report = rehearse(model, empty(70000, 64, 512), empty(70000, 32, 512))
    assert report.calls == report.split == 3


def test_where_the_model_asks_for_a_truth_both_ways_are_rehearsed():
    class Asking(Attention):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return super().forward(x, is_causal=True) if mask.all() else super().forward(x)

    report = rehearse(Asking, empty(2, 16, 512), empty(2, 16, dtype=torch.bool))
    shapes = sorted(site["shape"] for site in report.as_dict()["sites"])
    assert shapes == ["2x4x16x128 bfloat16", "2x4x16x128 bfloat16 causal"]


def test_one_way_is_enough():
    class Refusing(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.isnan(x).any():
                raise ValueError("not a number")
            return super().forward(x)

    assert rehearse(Refusing, empty(2, 16, 512)).calls == 1


class Doing(nn.Module):
    """A model of one parameter and one step."""

    def __init__(self, step: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.step = step

    def forward(self, x: torch.Tensor) -> Any:
        return self.step(x @ self.weight)


def fail(error: Exception) -> Any:
    raise error


def over_torchs(x: torch.Tensor) -> Any:
    try:
        return x.tolist()
    except RuntimeError as error:
        raise ValueError("no list") from error


def peek_in_backward(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    x.register_hook(lambda grad: grad * grad.sum().item())
    return x


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x: x * x.sum().item(), r"aten._local_scalar_dense.default stopped it: \w+Error:"),
        (lambda x: x[x > 0], r"aten.index.Tensor stopped it: NotImplementedError:"),
        (lambda x: x.unique(), r"aten._unique2.default stopped it: NotImplementedError:"),
        (lambda x: x + torch.ones(2, device="cpu"), r"aten.add.Tensor stopped it: RuntimeError:"),
        (lambda x: x.detach().numpy(), r"TypeError: can't convert meta device type tensor"),
        (over_torchs, r"aten._to_copy.default stopped it: ValueError: no list"),
        (peek_in_backward, r"aten._local_scalar_dense.default stopped it: \w+Error:"),
    ],
)
def test_what_meta_tensors_refuse_is_named(step, message):
    blamed = "Doing cannot run on meta tensors, which have no values: "
    with pytest.raises(RehearsalError, match=f"^{blamed}{message}") as caught:
        rehearse(Doing(step), torch.ones(2, 2))
    assert isinstance(caught.value, SDPAGuardError)
    assert str(caught.value).endswith(str(caught.value.__cause__))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x: x @ torch.ones(3, 3), "forward failed: RuntimeError: .*3"),
        (lambda x: x.view(-1, 7), "forward failed: RuntimeError: "),
        (lambda x: {}["meta"], "forward failed: KeyError: 'meta'"),
        (lambda x: fail(ValueError("metadata")), "forward failed: ValueError: metadata"),
        (lambda x: fail(NotImplementedError("later")), "forward failed: NotImplementedError: lat"),
        (lambda x: x.register_hook(lambda g: 1 / 0) and x, "backward failed: ZeroDivisionError: "),
    ],
)
def test_the_models_own_error_is_not_blamed_on_meta(step, message):
    with pytest.raises(RehearsalError, match=f"^the model's {message}") as caught:
        rehearse(Doing(step), torch.ones(2, 2))
    assert str(caught.value).endswith(str(caught.value.__cause__))


def test_an_error_after_one_that_the_model_caught_is_its_own():
    def step(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            x.tolist()
        return x @ torch.ones(3, 3)

    with pytest.raises(RehearsalError, match=r"^the model's forward failed: "):
        rehearse(Doing(step), torch.ones(2, 2))


def test_inputs_that_the_model_does_not_take():
    with pytest.raises(RehearsalError, match=r"^the model's forward failed: TypeError: .*forward"):
        rehearse(Attention, empty(2, 16, 512), empty(2, 16))


def test_a_backward_of_nothing():
    message = "^backward must be False: nothing that the model returns requires grad"
    with pytest.raises(RehearsalError, match=message):
        rehearse(nn.Identity(), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: fail(OSError("no file")), "failed: OSError: no file"),
        (lambda: nn.Linear(2, int(torch.ones(2).sum())), "cannot run on meta tensors, .* itself"),
    ],
)
def test_a_factory_that_fails(factory, message):
    with pytest.raises(RehearsalError, match=f"^the function that makes the model {message}"):
        rehearse(factory, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("model", "message"), [("bert", "model must be a module or"), (dict, "model must make a")]
)
def test_what_is_no_model(model, message):
    with pytest.raises(TypeError, match=message):
        rehearse(model, torch.ones(2, 2))


# --- transformers -------------------------------------------------------------------------------


def tokens(batch: int, length: int) -> torch.Tensor:
    return empty(batch, length, dtype=torch.long)


def config(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A factory of a transformers model of two layers."""
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{name}Config")(**options)
    return lambda: getattr(transformers, f"{name}Model")(made).to(HALF)


@pytest.mark.demo
@pytest.mark.parametrize(
    ("name", "options", "inputs", "named", "shape"),
    [
        ("Bert", {"num_hidden_layers": 2}, (9000, 512), {}, "9000x12x512x64 bfloat16 dropout=0.1"),
        ("GPT2", {"n_layer": 2}, (9000, 512), {}, "9000x12x512x64 bfloat16 dropout=0.1 causal"),
        (
            "Llama",
            {"num_hidden_layers": 2, "num_key_value_heads": 8},
            (2048, 4096),
            {},
            "2048x32x4096x128 bfloat16 kv_heads=8 causal",
        ),
        (
            "T5",
            {"num_layers": 2},
            (70000, 64),
            {"decoder_input_ids": tokens(70000, 32)},
            "70000x8x32x64 bfloat16 seq_k=64 mask dropout=0.1",
        ),
    ],
)
def test_language_models(name, options, inputs, named, shape):
    report = rehearse(config(name, **options), tokens(*inputs), **named)
    assert not report.fits
    assert shape in [site["shape"] for site in report.as_dict()["sites"]]


@pytest.mark.demo
def test_vision_and_speech_models():
    vit = rehearse(config("ViT", num_hidden_layers=2), empty(70000, 3, 224, 224))
    assert vit.as_dict()["sites"][0]["shape"] == "70000x12x197x64 bfloat16"
    whisper = config("Whisper", encoder_layers=2, decoder_layers=2)
    report = rehearse(whisper, empty(4096, 80, 3000), decoder_input_ids=tokens(4096, 448))
    assert "4096x6x448x64 bfloat16 seq_k=1500" in str(report.as_dict())
    assert not report.fits


def test_a_model_without_attention_is_no_pass_in_silence():
    with pytest.warns(SDPAGuardWarning, match="saw no call of scaled_dot_product"):
        report = rehearse(torch.nn.Linear(3, 3), torch.empty(2, 3))
    assert report.calls == 0
