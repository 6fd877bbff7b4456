"""The scoped door: ``with SDPAGuard():``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

import torch
from torch.overrides import TorchFunctionMode

from . import compiled, scope
from .call import autocast_dtype, is_fake
from .chunked import TorchCall
from .dynamo import eagerly, uncompiled
from .kernel import close_kernel, foreign_keys, open_kernel, torch_kernel
from .limit import Limit
from .limits import LIMITS
from .release import RUNNING_TORCH, Release
from .reports import Report
from .reroute import reroute
from .settings import Settings, make_settings

_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
#: The other names under which Python code calls SDPA.
_FUNCTION = torch.nn.functional.scaled_dot_product_attention
_PACKET = torch.ops.aten.scaled_dot_product_attention
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_DYNAMO_TRACES_US = Release(2, 9) <= RUNNING_TORCH


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
    """

    def __init__(
        self,
        policy: str = "split",
        *,
        limits: Iterable[Limit] = LIMITS,
        torch_version: Optional[str] = None,
        device_types: Sequence[str] = ("cuda", "meta"),
    ) -> None:
        super().__init__()
        self._settings = make_settings(policy, limits, torch_version, device_types)

    @property
    def report(self) -> Report:
        """What this guard saw and split so far."""
        return self._settings.report

    @eagerly
    def __enter__(self) -> SDPAGuard:
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            open_kernel(self._settings.device_types)
            scope.enter(self._settings)
            compiled.key_caches(self._settings)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    @eagerly
    def __exit__(self, *exc_info: Any) -> None:
        try:
            super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        finally:
            # Also where the scope is left in another thread than it was entered in.
            scope.leave(self._settings)
            compiled.key_caches(scope.in_force())
            close_kernel(self._settings.device_types)

    @uncompiled
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Optional[dict[str, Any]] = None,
    ) -> Any:
        # Reading the token makes dynamo guard on it: other settings compile other code, though the
        # attention hides in a module's function and meets our kernel only after dynamo.
        if self._settings.token and (func is _FUNCTION or func is _PACKET or func is _OPERATOR):
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
        settings = scope.in_force()
        if settings is None:
            return func(*args, **kwargs)
        # Of types that override torch's functions a glance is not free: it leaves nodes in a graph.
        if not types and _torch_is_next() and settings.recognises(args, kwargs):
            return torch_kernel(*args, **kwargs)
        return _judge(func, args, kwargs, settings)

    def _trace(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if _is_hidden(self._settings.token):
            return func(*args, **kwargs)
        if _DYNAMO_TRACES_US or not torch.compiler.is_dynamo_compiling():
            return reroute(func, args, kwargs, self._settings)
        # Our kernel comes next. Under this name no graph of unguarded code is found in its place in
        # torch's caches of compiled code.
        return _OPERATOR(*args, **kwargs)


@eagerly
def _judge(
    func: TorchCall, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings
) -> torch.Tensor:
    if _kernel_sees_more(args, kwargs):
        return func(*args, **kwargs)

    def judged(*args: Any, **kwargs: Any) -> torch.Tensor:
        # Judged once: an outer guard and our own kernel hand it on.
        outer = scope.current()
        try:
            scope.put(scope.Scope(None, outer))
            return func(*args, **kwargs)
        finally:
            scope.put(outer)

    return reroute(judged, args, kwargs, settings, unjudged=func)


def _is_hidden(token: str) -> bool:
    """Whether scopes of these settings are open, but others inside them."""
    settings_open = [s.token for s in scope.all_open()]
    return token in settings_open and settings_open[0] != token


# Dynamo asks once, while it traces: it guards on the scopes that are open.
setattr(_is_hidden, "_dynamo_marked_constant", True)  # noqa: B010


@uncompiled
def _torch_is_next() -> bool:
    """Whether nothing else sees the call between us and torch's own kernel."""
    return not (
        torch._C._len_torch_function_stack()
        or torch._C._autograd._profiler_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or torch._C._dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)
        or foreign_keys
    )


def _kernel_sees_more(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether to leave a call to our kernel: it comes after autocast's casts and jit's tracer."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False  # under vmap a call never gets there
    query = args[0] if args else kwargs.get("query")
    if torch.is_inference_mode_enabled() and isinstance(query, torch.Tensor) and is_fake(query):
        return False  # nor does a fake one in inference mode
    if torch._C._get_tracing_state() is not None:
        return True
    return autocast_dtype("cuda") is not None or autocast_dtype("cpu") is not None
