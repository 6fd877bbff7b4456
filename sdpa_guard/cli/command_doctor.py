"""``doctor``: what is installed here, and which limits does it have?"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import sys
from typing import Any, Optional

import torch

from sdpa_guard_autoload import PTH_FILE, VARIABLE, policy

from .. import torch_private
from ..guarding.torch_answers import enabled
from ..limits.backends import BY_TORCHS_NUMBER
from ..limits.limit import Limit
from ..limits.registry import LIMITS
from ..limits.releases import RUNNING_TORCH, unread
from ..limits.text_table import fill, render
from .argument_parser import Commands, add_command
from .command_autoload import pth_file, torch_looks_by_itself


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        _act,
        does="say what is installed here, which limits it has, and whether it is guarded",
        example="--json",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _act(options: argparse.Namespace) -> int:
    findings = examine()
    print(json.dumps(findings, indent=2) if options.json else as_text(findings))
    return 1 if findings["guard"]["missing"] else 0


def examine() -> dict[str, Any]:
    """What can be known here, JSON-ready. None is what cannot be known."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "driver": _driver(),
        "gpus": _gpus(),
        "backends": {
            "built": _built(),
            "enabled": sorted(enabled()),
            "order": _order(),
            "flash implementation": torch_private.flash_implementation() or "torch's own",
        },
        "limits": [limit.id for limit in _limits_here()],
        "guard": _guard(),
        "verdict": _verdict(),
    }


def as_text(findings: dict[str, Any]) -> str:
    """Two columns, and the verdict."""
    gpus = [f"{gpu['name']}, compute capability {gpu['capability']}" for gpu in findings["gpus"]]
    choice = findings["backends"]
    rows = [
        ("Python", findings["python"]),
        ("torch", findings["torch"]),
        ("CUDA", findings["cuda"] or "this torch is built without it"),
        ("ROCm", findings["rocm"] or "no"),
        ("driver", findings["driver"] or "none found"),
        ("GPUs", "; ".join(gpus) or "none in reach: what a kernel does here cannot be tried"),
        ("backends built", _words(choice["built"], "not known on this torch")),
        ("backends enabled", _words(choice["enabled"], "none")),
        ("order of choice", _words(choice["order"], "not known on this torch")),
        ("FlashAttention", choice["flash implementation"]),
        ("limits", _words(findings["limits"], "none")),
        (VARIABLE, findings["guard"]["now"]),
        ("zero-code start", findings["guard"]["start"]),
    ]
    table = render(("", "found"), rows)
    return f"{table}\n\n{fill(findings['verdict'])}"


def _words(names: Optional[list[str]], otherwise: str) -> str:
    return ", ".join(names) if names else otherwise


def _driver() -> Optional[str]:
    """The newest CUDA that the installed driver can run; torch has no way to ask for it."""
    version = ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda" if sys.platform == "win32" else "libcuda.so.1")
        driver.cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _gpus() -> list[dict[str, str]]:
    return [
        {
            "name": torch.cuda.get_device_name(index),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(index))),
        }
        for index in range(torch.cuda.device_count())
    ]


def _built() -> Optional[list[str]]:
    if torch_private.flash_is_built is None:
        return None
    flash = torch_private.flash_is_built()
    cudnn = torch.version.cuda is not None and torch.backends.cudnn.is_available()
    found = {"flash": flash, "efficient": torch.version.cuda is not None, "cudnn": cudnn}
    return [name for name, is_built in found.items() if is_built]


def _order() -> Optional[list[str]]:
    if torch_private.priority_order is None:
        return None
    return [BY_TORCHS_NUMBER[number] for number in torch_private.priority_order()]


def _guard() -> dict[str, Any]:
    """What the variable does right now, and whether anything would read it at torch's import."""
    value = os.environ.get(VARIABLE)
    try:
        asked = policy(value)
    except ValueError as wrong:
        return {"now": str(wrong), "start": _start() or "missing", "missing": True}
    start = _start()
    missing = asked is not None and start is None
    now = "unset: nothing is guarded without a line of code" if value is None else repr(value)
    if asked is not None:
        now += f": policy {asked}"
    how = "missing: `sdpa-guard autoload` puts it in place, and `sdpa-guard run` does without"
    return {"now": now, "start": start or how, "missing": missing}


def _start() -> Optional[str]:
    """How a program that imports torch comes to the guard; None: it does not."""
    if pth_file().exists():
        return f"in place, by {PTH_FILE}"
    return "in place: torch looks for it by itself" if torch_looks_by_itself() else None


def _limits_here() -> list[Limit]:
    """Those of this torch, of which some need a GPU of a certain compute capability."""
    gpus = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    return [
        limit
        for limit in LIMITS
        if limit.affects(RUNNING_TORCH) and (limit.capability is None or limit.capability in gpus)
    ]


def _verdict() -> str:
    if torch.version.hip:
        return "ROCm has other kernels behind the same functions; they have none of these limits."
    here = {limit.id: limit for limit in _limits_here()}
    backward = [limit_id for limit_id in ("F1", "F1p") if limit_id in here]
    if backward:
        found = f"This torch has the FlashAttention backward bound ({backward[0]}): guard it."
    else:
        found = (
            f"This torch does not have the FlashAttention backward bound; {len(here)} other limits "
            "remain, of which `sdpa-guard limits` tells."
        )
    if unread(RUNNING_TORCH):
        found += f" torch {RUNNING_TORCH}{unread(RUNNING_TORCH)}."
    if not torch.cuda.is_available():
        found += " Without a GPU in reach, that is what its release says, not what was tried."
    return found
