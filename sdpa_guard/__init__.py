"""Keeps torch's scaled_dot_product_attention inside the limits of its CUDA kernels."""

# First of all: where SDPA_GUARD is set, torch comes back here at the end of its own import.
import torch  # noqa: F401

from .dispatcher import disable, enable, is_enabled, report
from .errors import OversizedCallError, SDPAGuardError, SDPAGuardWarning
from .guard import SDPAGuard
from .judge import Finding
from .limit import Limit
from .limits import LIMITS
from .plan import Plan
from .rehearsal import RehearsalError, rehearse
from .reports import Report
from .verdict import Verdict, check

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
