"""The private names of torch that the tests use, and what each is for."""

from __future__ import annotations

from typing import Any

import torch

SDPA = "aten::scaled_dot_product_attention"
#: The function behind ``F.scaled_dot_product_attention``, for those who call it by this name.
BINDING = torch._C._nn.scaled_dot_product_attention
#: The CPU's fused kernel.
CPU_KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
#: What a tensor type has that torch calls with no more ado than a plain tensor.
NO_TORCH_FUNCTION = torch._C._disabled_torch_function_impl


def kernels() -> str:
    """Every kernel that torch has for attention now, somebody else's and ours included."""
    dump: str = torch._C._dispatch_dump(SDPA)
    return dump


def call_the_composite_kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
    """torch's own kernel, past every registered one."""
    operator = torch.ops.aten.scaled_dot_product_attention.default
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def take_back(library: torch.library.Library) -> None:
    """Remove what the library has registered."""
    library._destroy()


def wrapper(cls: type, inner: torch.Tensor) -> torch.Tensor:
    """A tensor of that type and of the inner one's shape and dtype, without memory."""
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    return made


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd takes the tensor for a view."""
    return tensor._is_view()


def fake_tensors() -> Any:
    """A mode whose tensors have no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def look_for_extensions() -> None:
    """What torch from 2.5 on does at the end of its import, unless it is told not to."""
    torch._import_device_backends()


# --- Dynamo -------------------------------------------------------------------------------------


def break_the_graph() -> None:
    """In compiled code: what comes next is another graph."""
    torch._dynamo.graph_break()


def dynamos_counters() -> Any:
    """What dynamo counts: graph breaks and frames."""
    from torch._dynamo.utils import counters

    return counters


def sizes_of_data_in_graphs() -> Any:
    """A setting: operators whose result's size only the data tell are compiled as well."""
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def aot_backend(forward: Any, backward: Any) -> Any:
    """A torch.compile backend made of compilers for the two graphs."""
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=forward, bw_compiler=backward)
