"""``limits``: which limits are there at all?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from ..limits.limit import Limit
from ..limits.registry import LIMITS
from ..limits.releases import parse_release
from ..limits.text_table import markdown, render
from .argument_parser import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "limits", _act, does="list the known limits", example="--torch 2.9.0"
    )
    parser.add_argument("--torch", metavar="V", help="only those of a torch release such as 2.9.0")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="as a table for a page")


def _act(options: argparse.Namespace) -> int:
    limits = LIMITS
    if options.torch is not None:
        try:
            release = parse_release(options.torch)
        except ValueError as wrong:
            options.parser.error(f"argument --torch: {wrong}")
        limits = tuple(limit for limit in LIMITS if limit.affects(release))
    if options.json:
        print(json.dumps([as_dict(limit) for limit in limits], indent=2))
    else:
        print(as_markdown(limits) if options.markdown else as_text(limits))
    return 0


def as_dict(limit: Limit) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "id": limit.id,
        "name": limit.name,
        "backend": limit.backend,
        "pass": limit.pass_,
        "counts": limit.formula,
        "bound": limit.bound,
        "torch": limit.releases,
        "capability": limit.capability and list(limit.capability),
        "effect": limit.effect,
        "cures": list(limit.cures),
        "evidence": list(limit.evidence),
        "source": limit.source,
    }


def _where(limit: Limit) -> str:
    """The torch releases that have it, and the GPUs if not all do."""
    if limit.capability is None:
        return limit.releases
    major, minor = limit.capability
    return f"{limit.releases}; only compute capability {major}.{minor}"


def as_text(limits: Sequence[Limit]) -> str:
    """One table for a terminal, and where each limit is known from."""
    header = ("id", "limit", "unsafe when", "torch", "past the bound", "known by")
    rows = [
        (
            limit.id,
            f"{limit.name}, {limit.pass_}",
            f"{limit.formula} > {limit.bound}",
            _where(limit),
            limit.effect,
            limit.evidence[0],
        )
        for limit in limits
    ]
    sources = "\n".join(f"{limit.id:<4} {limit.source}" for limit in limits)
    return f"{render(header, rows)}\n\n{sources}"


def as_markdown(limits: Sequence[Limit]) -> str:
    """The README's table."""
    header = ("id", "limit", "backend and pass", "counts", "bound", "torch", "past the bound")
    rows = [
        (
            limit.id,
            limit.name,
            f"{limit.backend}, {limit.pass_}",
            limit.formula,
            str(limit.bound),
            _where(limit),
            limit.effect,
            ", ".join(limit.cures) or "none",
            f"[{', '.join(limit.evidence)}]({limit.source})",
        )
        for limit in limits
    ]
    return markdown((*header, "cure", "known by"), rows)
