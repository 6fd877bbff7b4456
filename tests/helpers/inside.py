"""What the tests know of the inside of sdpa_guard, each name imported here and nowhere else.

Everything else in the tests goes by the public names.
"""

from __future__ import annotations

from sdpa_guard.cli import command_autoload as autoload
from sdpa_guard.cli import command_doctor as doctor
from sdpa_guard.cli import command_probe as probe_command
from sdpa_guard.cli.command_limits import as_markdown
from sdpa_guard.cli.main import main
from sdpa_guard.guarding import run_plan, torch_answers
from sdpa_guard.guarding.arguments import Arguments, bind, read
from sdpa_guard.guarding.decision import Answers, Decision, decide
from sdpa_guard.guarding.options import make_options
from sdpa_guard.limits import kernel_blocks
from sdpa_guard.limits.backends import BACKENDS, rules_of, takes
from sdpa_guard.limits.call import Call, Strides, call_of_sizes, contiguous
from sdpa_guard.limits.find_plan import cure
from sdpa_guard.limits.findings import exceeded
from sdpa_guard.limits.kernel_blocks import padded_head_dim
from sdpa_guard.limits.mask import Mask, plain_mask
from sdpa_guard.limits.plan import Plan
from sdpa_guard.limits.releases import RELEASES, RUNNING_TORCH, Release
from sdpa_guard.limits.rounding import round_up

#: The modules that a program without a guard must not have imported, and one below the top level.
MODULE_BELOW = "sdpa_guard.limits.call"

__all__ = [
    "BACKENDS",
    "MODULE_BELOW",
    "RELEASES",
    "RUNNING_TORCH",
    "Answers",
    "Arguments",
    "Call",
    "Decision",
    "Mask",
    "Plan",
    "Release",
    "Strides",
    "as_markdown",
    "autoload",
    "bind",
    "call_of_sizes",
    "contiguous",
    "cure",
    "decide",
    "doctor",
    "exceeded",
    "kernel_blocks",
    "main",
    "make_options",
    "padded_head_dim",
    "plain_mask",
    "probe_command",
    "read",
    "round_up",
    "rules_of",
    "run_plan",
    "takes",
    "torch_answers",
]
