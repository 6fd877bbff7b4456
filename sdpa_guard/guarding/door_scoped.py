"""The scoped door: ``with SDPAGuard():``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable, Optional

import torch
from torch.overrides import TorchFunctionMode

from .. import torch_private
from ..limits.limit import Limit
from ..limits.registry import LIMITS
from ..torch_private import SDPA, constant_while_tracing
from . import compile_caches, open_scopes
from .arguments import autocast_dtype, is_fake
from .dispatcher_hook import Hook, foreign_keys, torch_kernel
from .guard_memory import Memory
from .guarded_call import attend, trace
from .keep_eager import eagerly, uncompiled
from .options import JUDGED, DeviceType, Policy, make_options
from .report import Report
from .run_plan import TorchCall

#: The other names under which Python code calls SDPA.
_FUNCTION = torch.nn.functional.scaled_dot_product_attention
_PACKET = torch.ops.aten.scaled_dot_product_attention


class SDPAGuard(TorchFunctionMode):
    """Keeps the attention calls made inside the scope within their kernels' limits.

    Args:
        policy: ``"split"`` makes several calls of one that is over a limit, ``"warn"`` leaves it
            and warns (:class:`SDPAGuardWarning`), ``"raise"`` raises :class:`OversizedCallError`
            before a kernel runs.
        limits: the limits that count; ``LIMITS`` unless you test with lowered ones.
        torch_version: a release such as ``"2.9.0"``, whose limits count everywhere. None: on CUDA
            those of the torch that runs, on meta and fake tensors those of every supported one.
        device_types: the devices whose calls are judged as CUDA calls, of "cpu", "cuda", "meta".

    The scope covers this thread and the autograd threads that work for it. Scopes nest (the inner
    one's settings win), and a guard can be entered again; its :attr:`report` adds up.

    Raises:
        ValueError, TypeError: an argument is not what is allowed; the message says what is.
        SDPAGuardError: on entry, the running torch lacks what the guard needs.

    >>> import torch
    >>> from sdpa_guard import SDPAGuard
    >>> query = torch.empty(400, 4, 10496, 128, dtype=torch.bfloat16, device="meta")
    >>> query = query.requires_grad_()
    >>> with SDPAGuard(torch_version="2.9.0") as guard:
    ...     out = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    >>> guard.report.calls, guard.report.split, guard.report.chunks
    (1, 1, 2)
    """

    def __init__(
        self,
        policy: Policy = "split",
        *,
        limits: Iterable[Limit] = LIMITS,
        torch_version: Optional[str] = None,
        device_types: Sequence[DeviceType] = JUDGED,
    ) -> None:
        super().__init__()
        self._options = make_options(policy, limits, torch_version, device_types)
        self._memory = Memory(self._options)
        self._report = Report(self._memory.ledger)
        #: What keeps our kernel in torch's dispatcher, for each scope that is open.
        self._hooks: list[AbstractContextManager[object]] = []

    @property
    def report(self) -> Report:
        """What this guard saw and split so far."""
        return self._report

    @eagerly
    def __enter__(self) -> SDPAGuard:
        hook = Hook(self._options.device_types).__enter__()
        try:
            super().__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            hook.__exit__()
            raise
        self._hooks.append(hook)
        open_scopes.enter(self._memory, hook)
        try:
            compile_caches.key_caches(self._options)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @eagerly
    def __exit__(self, *exc_info: Any) -> None:
        try:
            super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        finally:
            left = open_scopes.leave(self._memory)
            in_force = open_scopes.in_force()
            compile_caches.key_caches(None if in_force is None else in_force.options)
            if left is not None:
                self._close(left.hook)
            elif self._hooks:  # the scope was entered in another thread
                self._close(self._hooks[-1])

    def _close(self, hook: AbstractContextManager[object]) -> None:
        self._hooks.remove(hook)
        hook.__exit__(None, None, None)

    @uncompiled
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Optional[dict[str, Any]] = None,
    ) -> Any:
        # Reading the token makes dynamo guard on it, and compile anew under other settings, also
        # where this mode never sees the attention call.
        if self._options.token and (func is _FUNCTION or func is _PACKET or func is SDPA):
            return self._attend(func, types, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    @uncompiled
    def _attend(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if torch.compiler.is_compiling():
            return self._trace(func, args, kwargs)
        memory = open_scopes.in_force()
        if memory is None:
            return func(*args, **kwargs)
        # A glance at types that override torch's functions would leave nodes in a graph.
        if not types and torch_is_next() and memory.recognises(args, kwargs):
            return torch_kernel(*args, **kwargs)
        return _attend_eagerly(func, args, kwargs, memory)

    def _trace(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if _is_hidden(self._options.token):
            return func(*args, **kwargs)
        if torch_private.DYNAMO_TRACES_MODES or not torch.compiler.is_dynamo_compiling():
            return trace(func, args, kwargs, self._options)
        # Our kernel comes next. Under this name no graph of unguarded code is found in its place in
        # torch's caches of compiled code.
        return SDPA(*args, **kwargs)


@eagerly
def _attend_eagerly(
    func: TorchCall, args: tuple[Any, ...], kwargs: dict[str, Any], memory: Memory
) -> torch.Tensor:
    if _kernel_sees_more(args, kwargs):
        return func(*args, **kwargs)

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        with open_scopes.judged_by(open_scopes.nobody()):
            return func(*args, **kwargs)

    return attend(make, args, kwargs, memory, hand_on=func)


@constant_while_tracing  # dynamo guards on the scopes that are open
def _is_hidden(token: str) -> bool:
    """Whether a scope of these options is open, but hidden by an inner one of other options."""
    tokens_open = [memory.options.token for memory in open_scopes.all_open()]
    return token in tokens_open and tokens_open[0] != token


@uncompiled
def torch_is_next() -> bool:
    """Whether nothing else sees the call between us and torch's own kernel."""
    return not (
        torch_private.function_modes()
        or torch_private.is_profiling()
        or torch_private.dispatch_modes()
        or torch_private.jit_tracer()
        or torch_private.key_is_included(torch_private.PRE_DISPATCH)
        or foreign_keys
    )


def _kernel_sees_more(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether to leave a call to our kernel: it comes after autocast's casts and jit's tracer."""
    if torch_private.innermost_transform() is not None:
        return False  # under vmap a call never gets there
    query = args[0] if args else kwargs.get("query")
    if torch.is_inference_mode_enabled() and isinstance(query, torch.Tensor) and is_fake(query):
        return False  # nor does a fake one in inference mode
    if torch_private.jit_tracer() is not None:
        return True
    return autocast_dtype("cuda") is not None or autocast_dtype("cpu") is not None
