"""``check``: does a shape fit?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Optional

import torch

from ..limits.backends import BACKENDS
from ..limits.check import Verdict, check, largest_batch
from ..limits.layouts import LAYOUTS
from ..limits.releases import RELEASES, Release
from ..limits.text_table import fill, render
from .argument_parser import Commands, add_command, fraction, shortened, whole_number

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SHAPE = re.compile(r"[0-9]+(?:x[0-9]+){3}")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "check",
        _act,
        does="say whether attention calls of these shapes fit, and how they would be split",
        example="400x4x10496x128 --torch 2.9.0",
    )
    parser.add_argument(
        "shapes",
        metavar="SHAPE",
        nargs="+",
        help="batch x heads x query length x head dim, as 400x4x10496x128; "
        "- reads shapes from standard input, one a line",
    )
    parser.add_argument(
        "--seq-k", type=whole_number, metavar="N", help="key length (default: the query's)"
    )
    parser.add_argument(
        "--kv-heads", type=whole_number, metavar="N", help="key/value heads (default: all)"
    )
    parser.add_argument(
        "--dtype", choices=_DTYPES, default="bfloat16", help="what the kernel is given"
    )
    parser.add_argument("--mask", action="store_true", help="with an attention mask")
    parser.add_argument(
        "--mask-requires-grad", action="store_true", help="the mask wants a gradient"
    )
    parser.add_argument("--dropout", type=fraction, default=0.0, metavar="P")
    parser.add_argument("--causal", action="store_true", help="with is_causal")
    parser.add_argument("--inference", action="store_true", help="no backward follows")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="bhsd",
        help="how query, key and value lie in memory: "
        + "; ".join(f"{name}: {what}" for name, what in LAYOUTS.items())
        + " (default: bhsd)",
    )
    parser.add_argument(
        "--capability",
        type=_capability,
        metavar="X.Y",
        help="the GPU's compute capability, as 9.0, for limits that only some GPUs have",
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        action="append",
        help="a backend that could take the call; may be given again (default: each of them)",
    )
    parser.add_argument(
        "--torch",
        metavar="V",
        help="a torch release such as 2.9.0, any for every supported one together, all for each "
        "by itself (default: the installed one)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line and shape")


def _act(options: argparse.Namespace) -> int:
    fits = True
    for shape in _shapes(options):
        facts = _facts(options, shape)
        try:
            answer = _everywhere(facts) if options.torch == "all" else _in(facts, options.torch)
        except (ValueError, TypeError) as wrong:
            options.parser.error(_in_our_words(str(wrong)))
        fits &= answer.ok
        print(json.dumps(answer.as_dict()) if options.json else f"{answer}\n", flush=True)
    return 0 if fits else 1


def _shapes(options: argparse.Namespace) -> Iterator[str]:
    for given in options.shapes:
        if given != "-":
            yield given
            continue
        try:
            lines = [line.strip() for line in sys.stdin or ()]  # None where it is closed
        except (OSError, UnicodeError) as fault:
            options.parser.error(f"argument SHAPE: standard input cannot be read: {fault}")
        if not any(lines):
            options.parser.error("argument SHAPE: there is no shape on standard input")
        yield from filter(None, lines)


def _facts(options: argparse.Namespace, shape: str) -> dict[str, Any]:
    """The arguments of ``sdpa_guard.check``."""
    if not _SHAPE.fullmatch(shape):
        options.parser.error(
            f"argument SHAPE: {shortened(shape, 60)!r} must be four whole numbers, "
            "batch x heads x query length x head dim, as 400x4x10496x128"
        )
    batch, heads, seq_q, head_dim = map(whole_number, shape.split("x"))
    return {
        "batch": batch,
        "heads": heads,
        "seq_q": seq_q,
        "head_dim": head_dim,
        "seq_k": options.seq_k,
        "kv_heads": options.kv_heads,
        "dtype": _DTYPES[options.dtype],
        "mask": options.mask or options.mask_requires_grad,
        "mask_requires_grad": options.mask_requires_grad,
        "dropout_p": options.dropout,
        "is_causal": options.causal,
        "requires_grad": not options.inference,
        "layout": options.layout,
        "capability": options.capability,
        "backends": tuple(options.backend or BACKENDS),
    }


def _capability(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,3})\.([0-9])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be as 9.0, not {shortened(text, 60)!r}")
    return int(found[1]), int(found[2])


def _in_our_words(message: str) -> str:
    """An error of ``sdpa_guard.check`` with the name that the argument has here."""
    name, _, rest = message.partition(" ")
    ours = {
        "torch_version": "--torch",
        "dropout_p": "--dropout",
        "is_causal": "--causal",
        "requires_grad": "--inference",
        **{same: f"--{same.replace('_', '-')}" for same in ("seq_k", "kv_heads", "mask")},
    }
    return f"argument {ours.get(name, 'SHAPE')}: {name} {rest}"


@dataclasses.dataclass(frozen=True)
class _InOneRelease:
    verdict: Verdict
    #: None where even one batch entry is over a limit, or no batch is.
    largest_batch: Optional[int]

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.verdict.refused

    def as_dict(self) -> dict[str, Any]:
        return {**self.verdict.as_dict(), "largest_batch": self.largest_batch}

    def __str__(self) -> str:
        if self.largest_batch is None:
            return str(self.verdict)
        return f"{self.verdict}\n\nlargest batch that fits in one call: {self.largest_batch}"


def _in(facts: dict[str, Any], torch_version: Optional[str]) -> _InOneRelease:
    verdict = check(**facts, torch_version=torch_version)
    return _InOneRelease(verdict, largest_batch(verdict))


@dataclasses.dataclass(frozen=True)
class _InEachRelease:
    verdicts: dict[Release, Verdict]

    @property
    def ok(self) -> bool:
        refused = all(verdict.refused for verdict in self.verdicts.values())
        return not refused and all(verdict.ok for verdict in self.verdicts.values())

    def as_dict(self) -> dict[str, Any]:
        each = {str(release): verdict.as_dict() for release, verdict in self.verdicts.items()}
        shape = str(next(iter(self.verdicts.values())).call)
        return {"ok": self.ok, "shape": shape, "releases": each}

    def __str__(self) -> str:
        over: dict[str, list[str]] = {}
        for column, verdict in enumerate(self.verdicts.values()):
            for finding in verdict.findings:
                if finding.over:
                    cells = over.setdefault(str(finding.limit), ["-"] * len(self.verdicts))
                    cells[column] = "OVER"
        call = next(iter(self.verdicts.values())).call
        if not over and not self.ok:
            return f"these backends would not take {call} on any supported torch"
        if not over:
            return f"{call} fits in one call on every supported torch"
        releases = [f"{release.major}.{release.minor}" for release in self.verdicts]
        failing = [r for r, v in zip(releases, self.verdicts.values()) if not v.ok]
        sentence = fill(f"{call} is over a limit on torch {', '.join(failing)}")
        table = render(("limit", *releases), [(limit, *cells) for limit, cells in over.items()])
        return f"{sentence}\n\n{table}"


def _everywhere(facts: dict[str, Any]) -> _InEachRelease:
    return _InEachRelease({r: check(**facts, torch_version=str(r)) for r in RELEASES})
