"""``rehearse``: a training step of a whole model on meta tensors, which hold no data."""

from __future__ import annotations

import re
import warnings
from typing import Any, Callable, Optional, Union

import torch

from .errors import SDPAGuardError, SDPAGuardWarning
from .guarding.door_scoped import SDPAGuard
from .guarding.report import Report
from .torch_private import DispatchMode, number_of, tree_leaves, tree_map

ModelOrFactory = Union[torch.nn.Module, Callable[[], torch.nn.Module]]


#: How torch speaks of meta tensors: in an operator's error, and in others, which may be anybody's.
_META = re.compile(r"\bmeta\b", re.IGNORECASE)
_ABOUT_META = re.compile(r"\bmeta'? (device|tensor)", re.IGNORECASE)


class RehearsalError(SDPAGuardError, RuntimeError):
    """The model cannot run on meta tensors, or fails by itself; the message says what and where."""


class _ListingGuard(SDPAGuard):
    """A guard of calls on meta tensors that lists them all."""

    def __init__(self, torch_version: Optional[str]) -> None:
        super().__init__(torch_version=torch_version, device_types=("meta",))
        self._memory.ledger.lists_every_call = True


def rehearse(
    model: ModelOrFactory,
    *inputs: Any,
    backward: bool = True,
    torch_version: Optional[str] = None,
    **kwargs: Any,
) -> Report:
    """The attention calls that one step of the model makes, each against its limits.

    The step runs on meta tensors: nothing is computed and no memory taken, so the batch may be
    larger than any machine holds. The report lists every call, and ``report.fits`` says whether all
    are inside. Where the model asks whether something is true of its data, such as a mask without
    padding, the step is made both ways, and the report counts both. A model without any call of
    SDPA gets a warning: its report fits, and says nothing.

    Args:
        model: the model, which stays as it is, or a function that makes one (on meta).
        inputs: what the model is called with. Tensors, also nested in lists and dictionaries, may
            be on any device, meta included.
        backward: a backward follows, from the sum of all that the model returns; else the model
            runs without gradients.
        torch_version: the release whose limits count, such as "2.9.0"; None means every
            supported one.
        kwargs: what the model is called with by name.

    Returns:
        The report of the step, which lists every call.

    Raises:
        SDPAGuardError: the running torch lacks what the guard needs; the message names it.
        RehearsalError: the model needs values, which meta tensors do not have, or it fails, or so
            does the function that makes it; the error that stopped it is the cause.
        ValueError, TypeError: an argument is not what is allowed; the message says what is.

    >>> import torch
    >>> from sdpa_guard import rehearse
    >>> layer = torch.nn.TransformerEncoderLayer(512, 8, dropout=0.0, dtype=torch.bfloat16)
    >>> batch = torch.empty(200, 400, 512, dtype=torch.bfloat16, device="meta")
    >>> rehearse(layer, batch, torch_version="2.9.0").fits
    True
    """
    guard = _ListingGuard(torch_version)
    module = _make(model)
    failure: Optional[RehearsalError] = None
    rehearsed = False
    for answer in (True, False):
        answers = _Answers(answer)
        try:
            with guard, torch.device("meta"), torch.set_grad_enabled(backward), answers:
                out = _forward(module, inputs, kwargs)
                if backward:
                    answers.step = "backward"
                    _backward(out)
            rehearsed = True
        except RehearsalError as error:
            failure = error
        except Exception as error:
            failure = _failure(module, answers, error)
        if not answers.asked:
            break
    if failure is not None and not rehearsed:
        raise failure
    if not guard.report.calls:
        message = (
            "rehearse saw no call of scaled_dot_product_attention: does the model use another "
            'attention implementation (in transformers, attn_implementation="sdpa" chooses it)?'
        )
        warnings.warn(message, SDPAGuardWarning, stacklevel=2)
    return guard.report


class _Answers(DispatchMode):  # type: ignore[misc]
    """Answers every question whether something is true of the data."""

    def __init__(self, answer: bool) -> None:
        super().__init__()
        self.answer = answer
        self.asked = False
        self.step = "forward"
        self.refused: Optional[Exception] = None
        self.operator = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is number_of and args[0].dtype is torch.bool:
            self.asked = True
            return self.answer
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            # Meta has no kernel for it, or one that needs values; other errors are the model's.
            if isinstance(error, NotImplementedError) or _META.search(str(error)):
                self.refused, self.operator = error, str(func)
            raise


def _failure(module: torch.nn.Module, answers: _Answers, error: Exception) -> RehearsalError:
    """What to tell of a step that ended in the error: meta's fault, or the model's own?"""
    blamed = f"the model's {answers.step} failed"
    # The model may have raised an error of its own over torch's.
    link: Optional[BaseException] = error
    while link is not None:
        if link is answers.refused or _is_about_meta(link):
            blamed = f"{type(module).__name__} cannot run on meta tensors, which have no values"
            blamed += f": {answers.operator} stopped it" if link is answers.refused else ""
            break
        link = link.__cause__ or link.__context__
    failure = RehearsalError(f"{blamed}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _is_about_meta(error: BaseException) -> bool:
    torchs = isinstance(error, (RuntimeError, TypeError))
    return torchs and _ABOUT_META.search(str(error)) is not None


def _make(model: ModelOrFactory) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        return model
    if not callable(model):
        raise TypeError(f"model must be a module or a function that makes one, not {model!r}")
    try:
        with torch.device("meta"):
            module = model()
    except Exception as error:
        what = "failed"
        if _is_about_meta(error):
            what = "cannot run on meta tensors, which have no values (give the model itself)"
        raise RehearsalError(
            f"the function that makes the model {what}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"model must make a torch.nn.Module, not {module!r}")
    return module


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _on_meta(values: Any) -> Any:
    def to_meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to("meta").requires_grad_(value.requires_grad)

    return tree_map(to_meta, values)


def _forward(module: torch.nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state, inputs, kwargs = _on_meta((_state(module), inputs, kwargs))
    return torch.func.functional_call(module, state, inputs, kwargs)


def _backward(out: Any) -> None:
    leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    wanting = [leaf.sum() for leaf in leaves if leaf.requires_grad]
    if not wanting:
        raise RehearsalError("backward must be False: nothing that the model returns requires grad")
    torch.stack(wanting).sum().backward()
