"""Autocast for CUDA without a GPU."""

from __future__ import annotations

import torch

#: torch 2.3 has one autocast function for each device type instead.
BY_DEVICE = hasattr(torch, "get_autocast_dtype")


class cuda_autocast:  # noqa: N801 - reads as a context manager
    """``torch.autocast("cuda", torch.bfloat16)``, which turns itself off on a CPU-only torch."""

    def __enter__(self) -> None:
        if BY_DEVICE:
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            torch.set_autocast_enabled("cuda", True)
        else:
            torch.set_autocast_gpu_dtype(torch.bfloat16)
            torch.set_autocast_enabled(True)

    def __exit__(self, *exc_info: object) -> None:
        if BY_DEVICE:
            torch.set_autocast_enabled("cuda", False)
        else:
            torch.set_autocast_enabled(False)
