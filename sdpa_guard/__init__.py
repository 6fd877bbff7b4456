"""Keeps torch's scaled_dot_product_attention inside the limits of its CUDA kernels.

limits      what the kernels can take, and how a call is brought inside: edit its ``*_limits``
            and ``*_counts`` when a bound becomes known
guarding    what stands between a program and torch, and acts on that
torch_private   every private name of torch: edit it when a release takes one away
rehearsal, testing, errors   what users import beside the guard
cli         the command line: a new command is a module and a line in its ``main``
probing     the bounds measured on this machine's GPU
"""

# First of all: where SDPA_GUARD is set, torch's import ends by importing this package.
import torch  # noqa: F401

from .errors import OversizedCallError, SDPAGuardError, SDPAGuardWarning
from .guarding.door_process_wide import disable, enable, is_enabled, report
from .guarding.door_scoped import SDPAGuard
from .guarding.report import Report
from .limits.check import Verdict, check
from .limits.findings import Finding
from .limits.limit import Limit
from .limits.plan import Plan
from .limits.registry import LIMITS
from .rehearsal import RehearsalError, rehearse

__version__ = "0.1.0"

__all__ = [
    "LIMITS",
    "Finding",
    "Limit",
    "OversizedCallError",
    "Plan",
    "RehearsalError",
    "Report",
    "SDPAGuard",
    "SDPAGuardError",
    "SDPAGuardWarning",
    "Verdict",
    "check",
    "disable",
    "enable",
    "is_enabled",
    "rehearse",
    "report",
]
