"""Every private name of torch that this package uses, and every switch by the running release.

When a new torch takes a name away, this is the file to edit. Each name is bound once, as it is, so
that a call through it costs nothing more. A stub stands in for a missing name and raises
MissingNameError when it is used; ``need_all`` raises it before anything is guarded. ``check``,
``limits`` and ``doctor`` need no such name.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, Callable, NamedTuple, NoReturn, Optional, TypeVar

import torch

from .errors import SDPAGuardError
from .limits.releases import RELEASES, RUNNING_TORCH, Release

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NEVER = Release(1000, 0)


class Name(NamedTuple):
    """One private name of torch, and the supported releases that have it."""

    #: As ``pkgutil.resolve_name`` takes it: "torch._guards:TracingContext".
    path: str
    since: Release
    before: Release

    def is_in(self, release: Release) -> bool:
        return self.since <= release < self.before


#: Those that guarding needs, in the order of this file.
NAMES: list[Name] = []
#: Those that the running torch should have and has not.
MISSING: list[str] = []


class MissingNameError(SDPAGuardError):
    """The running torch lacks private names that guarding needs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"torch {torch.__version__} has no {', '.join(names)}, which this sdpa_guard needs to "
            "guard calls: use a newer sdpa_guard, or an older torch. `check`, `limits` and "
            "`doctor` work without them."
        )


class _Missing(type):
    """What is bound in the place of a name that is missing: any use of it raises."""

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise MissingNameError(MISSING)

    def __getattr__(cls, name: str) -> NoReturn:
        raise MissingNameError(MISSING)


def need_all() -> None:
    """Raise MissingNameError if the running torch lacks any of the names."""
    if MISSING:
        raise MissingNameError(MISSING)


def _bind(path: str, since: Release = RELEASES[0], before: Release = _NEVER) -> Any:
    """What torch has under the name, whatever it is."""
    name = Name(path, since, before)
    NAMES.append(name)
    try:
        return pkgutil.resolve_name(path)
    except (AttributeError, ImportError):
        if name.is_in(RUNNING_TORCH):
            MISSING.append(path.replace(":", "."))
        return _Missing("Missing", (), {})


# --- The dispatcher -------------------------------------------------------------------------------

#: SDPA as the dispatcher knows it. This name is public; what hangs on it is not.
SDPA = torch.ops.aten.scaled_dot_product_attention.default
_SDPA = "torch:ops.aten.scaled_dot_product_attention.default"
#: ``call_at(key, ...)`` runs the kernel of that dispatch key, and skips those before it.
call_at: Callable[..., Any] = _bind(f"{_SDPA}._op_dk")
#: The kernel for each key. torch.compile dispatches by it, and no registration renews it.
dispatch_cache: dict[Any, Any] = _bind(f"{_SDPA}._dispatch_cache")
#: The key of torch's own kernel, which chooses a backend.
COMPOSITE: Any = _bind("torch._C:DispatchKey.CompositeImplicitAutograd")
PRE_DISPATCH: Any = _bind("torch._C:DispatchKey.PreDispatch")
has_kernel: Callable[[str, str], bool] = _bind("torch._C:_dispatch_has_kernel_for_dispatch_key")
#: Takes a library's kernels out of the dispatcher, at once.
destroy_library: Callable[[torch.library.Library], None] = _bind("torch.library:Library._destroy")

# --- What else sees a call on its way -------------------------------------------------------------

function_modes: Callable[[], int] = _bind("torch._C:_len_torch_function_stack")
PastFunctionModes: Callable[[], Any] = _bind("torch._C:DisableTorchFunction")
dispatch_modes: Callable[[], int] = _bind("torch._C:_len_torch_dispatch_stack")
DispatchMode: Any = _bind("torch.utils._python_dispatch:TorchDispatchMode")
is_profiling: Callable[[], bool] = _bind("torch._C:_autograd._profiler_enabled")
#: The tracer of ``torch.jit.trace``, or None.
jit_tracer: Callable[[], Optional[object]] = _bind("torch._C:_get_tracing_state")
key_is_included: Callable[[Any], bool] = _bind("torch._C:_dispatch_tls_is_dispatch_key_included")
any_autocast: Callable[[], bool] = _bind("torch._C:_is_any_autocast_enabled")

# --- torch.func -----------------------------------------------------------------------------------

#: The innermost transform that this thread runs under, or None.
innermost_transform: Callable[[], Optional[object]] = _bind(
    "torch._C:_functorch.peek_interpreter_stack"
)
is_wrapped_by_transform: Callable[[torch.Tensor], bool] = _bind(
    "torch._C:_functorch.is_functorch_wrapped_tensor"
)
unwrapped: Callable[[torch.Tensor], torch.Tensor] = _bind("torch._C:_functorch.get_unwrapped")
is_batched: Callable[[torch.Tensor], bool] = _bind("torch._C:_functorch.is_batchedtensor")
batch_dim: Callable[[torch.Tensor], int] = _bind("torch._C:_functorch.maybe_get_bdim")

# --- Storage that the autograd engine carries to its threads --------------------------------------

stash: Callable[[str, object], None] = _bind("torch._C:_stash_obj_in_tls")
is_stashed: Callable[[str], bool] = _bind("torch._C:_is_key_in_tls")
stashed: Callable[[str], Any] = _bind("torch._C:_get_obj_in_tls")

# --- torch.compile --------------------------------------------------------------------------------

#: ``tracing_context()`` is None unless AOTAutograd or export is tracing.
tracing_context: Callable[[], Optional[object]] = _bind("torch._guards:TracingContext.try_get")
#: Sets the callback with which dynamo looks at new frames; returns the one before.
set_frame_callback: Callable[[Any], Any] = _bind("torch._C:_dynamo.eval_frame.set_eval_frame")
_skip_code: Any = _bind("torch._C:_dynamo.eval_frame.skip_code", before=Release(2, 7))
_set_strategy: Any = _bind(
    "torch._C:_dynamo.eval_frame.set_code_exec_strategy", since=Release(2, 7)
)
_FrameAction: Any = _bind("torch._C:_dynamo.eval_frame._FrameAction", since=Release(2, 7))
_Strategy: Any = _bind("torch._C:_dynamo.eval_frame._FrameExecStrategy", since=Release(2, 7))
#: The settings of torch.compile's caches; their key can carry a tag.
_compiler_config: Any = getattr(torch.compiler, "config", None)
cache_settings: Any = _compiler_config if hasattr(_compiler_config, "cache_key_tag") else None
#: Whoever compiles, or calls compiled code, has a frame of one of these on its stack.
COMPILERS_FILES = frozenset(
    os.path.join(os.path.dirname(torch.__file__), "_dynamo", name)
    for name in ("eval_frame.py", "convert_frame.py")
)
#: Earlier releases have no way to ask of a symbolic size without an answer that binds.
CAN_ASK_OF_SIZES = Release(2, 7) <= RUNNING_TORCH
#: Earlier releases leave a function mode's attention call to the dispatcher.
DYNAMO_TRACES_MODES = Release(2, 9) <= RUNNING_TORCH
#: FlashAttention on the CPU lays its result out as the query; before, the heads of a row together.
CPU_FLASH_FOLLOWS_QUERY = Release(2, 5) <= RUNNING_TORCH


def skip_frames_of(code: CodeType) -> None:
    """Let dynamo compile no frame of the code; it may still trace into it."""
    if MISSING:
        return
    if RUNNING_TORCH < Release(2, 7):
        _skip_code(code)
    else:
        _set_strategy(code, _Strategy(_FrameAction.SKIP, _FrameAction.DEFAULT))


def constant_while_tracing(function: _Function) -> _Function:
    """The function, marked: dynamo calls it once while it traces, and keeps the answer."""
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010
    return function


def compiler_is_loaded() -> bool:
    """Whether this process can have compiled anything."""
    return "torch._dynamo" in sys.modules


def default_cache_tag() -> Iterator[tuple[str, Callable[[str], None]]]:
    """The tag of torch's caches that new threads begin with: its values, and how to set each."""
    entry = getattr(cache_settings, "_config", {}).get("cache_key_tag")
    for field in ("default", "env_value_default"):
        tag = getattr(entry, field, None)
        if isinstance(tag, str):
            yield tag, functools.partial(setattr, entry, field)


# --- Tensors --------------------------------------------------------------------------------------

#: A view that may be changed in place.
unsafe_view: Callable[..., torch.Tensor] = _bind("torch:ops.aten._unsafe_view")
#: The operator by which a program asks a tensor for a number.
number_of: Any = _bind("torch:ops.aten._local_scalar_dense.default")
tree_map: Callable[..., Any] = _bind("torch.utils._pytree:tree_map")
tree_leaves: Callable[[Any], list[Any]] = _bind("torch.utils._pytree:tree_leaves")


def is_torchs_stand_in(kind: type) -> bool:
    """Whether torch traces with tensors of this type."""
    named_so = kind.__name__ in ("FakeTensor", "FunctionalTensor")
    return named_so and kind.__module__.startswith("torch._subclasses.")


# --- Which backend --------------------------------------------------------------------------------

#: The number of the backend that torch would choose, for the arguments of SDPA.
choose_backend: Callable[..., int] = _bind("torch:_fused_sdp_choice")
#: torch's order of preference, by number; only told by some releases.
priority_order: Optional[Callable[[], list[int]]] = getattr(
    torch._C, "_get_sdp_priority_order", None
)
#: Whether this torch is built with FlashAttention; only told by some releases.
flash_is_built: Optional[Callable[[], bool]] = getattr(
    torch.backends.cuda, "is_flash_attention_available", None
)
#: The name of what stands in for torch's own FlashAttention, which releases from 2.10 allow.
flash_implementation: Callable[[], Optional[str]] = getattr(
    getattr(torch.nn, "attention", None), "current_flash_attention_impl", lambda: None
)
#: (N, L, E) runs as one batch entry of N heads; earlier releases never fuse it.
FUSES_3D = Release(2, 14) <= RUNNING_TORCH
#: A single key/value head is repeated without being asked to by enable_gqa.
REPEATS_ONE_HEAD = Release(2, 14) <= RUNNING_TORCH
#: One autocast function takes the device type; torch 2.3 has one for each instead.
AUTOCAST_BY_DEVICE = Release(2, 4) <= RUNNING_TORCH
#: torch imports what its entry points name, at the end of its own import.
LOADS_EXTENSIONS = Release(2, 5) <= RUNNING_TORCH
