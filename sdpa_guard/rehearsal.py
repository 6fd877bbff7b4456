"""``rehearse``: a training step of a whole model on meta tensors, which hold no data."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .errors import SDPAGuardError
from .guard import SDPAGuard
from .reports import Report

ModelOrFactory = Union[torch.nn.Module, Callable[[], torch.nn.Module]]


class RehearsalError(SDPAGuardError, RuntimeError):
    """The model cannot run on meta tensors; the message says which operation stopped it."""


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
    padding, the step is made both ways, and the report counts both.

    Args:
        model: the model, which stays as it is, or a function that makes one (on meta).
        inputs: what the model is called with. Tensors, also nested in lists and dictionaries, may
            be on any device, meta included.
        backward: a backward follows, from the sum of all that the model returns; else the model
            runs without gradients.
        torch_version: the release whose limits count, such as "2.9.0"; None is every supported one.
        kwargs: what the model is called with by name.

    Raises:
        RehearsalError: the model needs values, which meta tensors do not have, or fails.
        ValueError, TypeError: an argument is not what is allowed; the message says what is.
    """
    guard = SDPAGuard(torch_version=torch_version, device_types=("meta",))
    guard.report.lists_every_call = True
    module = _make(model)
    failure: Optional[RehearsalError] = None
    rehearsed = False
    for answer in (True, False):
        answers = _Answers(answer)
        try:
            with guard, torch.device("meta"), torch.set_grad_enabled(backward), answers:
                _step(module, inputs, kwargs, backward)
            rehearsed = True
        except Exception as error:
            failure = RehearsalError(
                f"{type(module).__name__} cannot run on meta tensors, which have no values: "
                f"{answers.operator} stopped it: {type(error).__name__}: {error}"
            )
            failure.__cause__ = error
        if not answers.asked:
            break
    if failure is not None and not rehearsed:
        raise failure
    return guard.report


class _Answers(TorchDispatchMode):
    """Answers each question about a truth in the data; knows torch's last operator."""

    def __init__(self, answer: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answer = answer
        self.asked = False
        self.operator = "nothing in torch"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operator = str(func)
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.bool:
            self.asked = True
            return self.answer
        return func(*args, **(kwargs or {}))


def _make(model: ModelOrFactory) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        return model
    if not callable(model):
        raise TypeError(f"model must be a module or a function that makes one, not {model!r}")
    with torch.device("meta"):
        module = model()
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


def _step(
    module: torch.nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], backward: bool
) -> None:
    state, inputs, kwargs = _on_meta((_state(module), inputs, kwargs))
    out = torch.func.functional_call(module, state, inputs, kwargs)
    if not backward:
        return
    leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    wanting = [leaf.sum() for leaf in leaves if leaf.requires_grad]
    if not wanting:
        raise ValueError("backward must be False: nothing that the model returns requires grad")
    torch.stack(wanting).sum().backward()
