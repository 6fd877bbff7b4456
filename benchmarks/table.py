"""The table that the figures make."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from sdpa_guard.limits.text_table import markdown, render

from .timing import Result

HEADER = ("row", "what", "against", "median", "quartiles", "reach", "reached", "floor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the table goes."""
    parser.add_argument(
        "--json", type=_writable, metavar="FILE", help="write the figures to FILE as well"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table for a page")


def publish(results: Sequence[Result], machine: str, options: argparse.Namespace) -> None:
    """Print the table, and write the figures to a file if one is named."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {machine}"
    table = markdown if options.markdown else render
    print(f"{table(HEADER, [*map(_line, results)])}\n\n{versions}")
    if options.json is not None:
        figures = [{**dataclasses.asdict(one), "reached": one.reached} for one in results]
        text = json.dumps({"machine": versions, "results": figures}, indent=1)
        options.json.write_text(text + "\n")


def _writable(name: str) -> Path:
    # Better now than after minutes of measuring.
    file = Path(name)
    try:
        file.touch()
    except OSError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None
    return file


def _line(result: Result) -> tuple[str, ...]:
    at = "at least" if result.at_least else "at most"
    reached = {True: "yes", False: "no", None: ""}[result.reached]
    return (
        result.row,
        result.what,
        result.against,
        _number(result.spread.median, result.unit),
        f"{_number(result.spread.low)} to {_number(result.spread.high)}",
        "" if result.reach is None else f"{at} {_number(result.reach, result.unit)}",
        reached,
        "" if result.floor is None else _number(result.floor, result.unit),
    )


def _number(figure: float, unit: str = "") -> str:
    return f"{figure:.4g} {unit}".strip()
