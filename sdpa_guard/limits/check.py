"""``check``: a call's shape against the limits, without making a tensor."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, Optional, SupportsIndex, Union

import torch

from ..errors import check_names
from .backends import BACKENDS, Backend, takes
from .bisection import largest
from .call import Call, call_of_sizes
from .find_plan import cure
from .findings import Finding, examine, exceeded
from .integer_ends import LARGEST_SIZE
from .layouts import Layout, Sizes, StridesByName, lay_out
from .limit import Limit, on_gpu
from .mask import plain_mask
from .plan import Plan
from .registry import LIMITS
from .releases import RELEASES, RUNNING_TORCH, Release, name_of, parse_release
from .text_table import fill, render


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What ``check`` found. ``print`` it for a table.

    >>> from sdpa_guard import check
    >>> verdict = check(399, 4, 10496, 128, torch_version="2.9.0")
    >>> verdict.ok, verdict.plan
    (True, None)
    >>> verdict.as_dict()["taken_by"]
    ['flash', 'efficient', 'cudnn']
    """

    call: Call
    #: The torch releases that were asked about: one, or every supported one.
    releases: tuple[Release, ...]
    #: Every limit that the call could meet, the fullest first.
    findings: tuple[Finding, ...]
    #: How the guard would split the call; None when it fits, or when nothing cures it.
    plan: Optional[Plan]
    #: The limits of the backends that were asked about.
    judged: tuple[Limit, ...] = dataclasses.field(repr=False)
    #: The backends that were asked about.
    asked: tuple[Backend, ...] = dataclasses.field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the call is inside every limit as it is."""
        return not any(finding.over for finding in self.findings)

    @property
    def taken_by(self) -> tuple[Backend, ...]:
        """The backends, of those that were asked about, that could take the call."""
        return tuple(b for b in self.asked if any(takes(b, self.call, r) for r in self.releases))

    @property
    def refused(self) -> bool:
        """Whether the caller named some backends and none of them could take the call."""
        return not self.taken_by and set(self.asked) != set(BACKENDS)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ok": self.ok,
            "shape": str(self.call),
            "torch": "any" if len(self.releases) > 1 else str(self.releases[0]),
            "taken_by": list(self.taken_by),
            "findings": [finding.as_dict() for finding in self.findings],
            "plan": self.plan and self.plan.as_dict(),
        }

    def __str__(self) -> str:
        if self.ok:
            outcome = "fits in one call"
        elif self.plan is None:
            outcome = "is over a limit, and no split cures it"
        else:
            copied = len(self.plan) == 1
            outcome = f"{'needs a copy' if copied else 'must be split'}: {self.plan}"
            uncured = [f.limit.id for f in self.findings if f.over and not f.limit.cures]
            outcome += f"; nothing cures {', '.join(uncured)}" if uncured else ""
        sentence = f"{self.call} on {name_of(self.releases)} {outcome}"
        if not self.findings:
            return fill(f"{sentence}; {self._no_findings()}")
        rows = [
            (
                "OVER" if finding.over else "ok",
                str(finding.limit),
                finding.limit.pass_,
                str(finding.counted),
                str(finding.bound),
                f"{finding.ratio:.2%}",
            )
            for finding in self.findings
        ]
        table = render(("", "limit", "pass", "counted", "bound", "used"), rows)
        return f"{fill(sentence)}\n\n{table}"

    def _no_findings(self) -> str:
        if self.taken_by:
            return f"{' and '.join(self.taken_by)} could take it, with no known limit"
        if not self.asked:
            return "no backend was asked about"
        if not self.refused:
            return "no fused backend takes it"
        return f"{' and '.join(self.asked)} would not take it"


def check(
    batch: int,
    heads: int,
    seq_q: int,
    head_dim: int,
    *,
    seq_k: Optional[int] = None,
    kv_heads: Optional[int] = None,
    dtype: torch.dtype = torch.bfloat16,
    mask: bool = False,
    mask_requires_grad: bool = False,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    requires_grad: bool = True,
    layout: Union[Layout, StridesByName] = "bhsd",
    backends: Sequence[Backend] = BACKENDS,
    torch_version: Optional[str] = None,
    capability: Optional[tuple[int, int]] = None,
) -> Verdict:
    """Judge one attention call by its shape; no tensor is made.

    Args:
        batch, heads, seq_q, head_dim: the query's shape, in elements.
        seq_k: the key length; ``seq_q`` unless given.
        kv_heads: key/value heads, for grouped-query attention; ``heads`` unless given.
        dtype: what the kernel is given, so after autocast.
        mask: there is a mask of seq_q rows and seq_k columns, broadcast over batch and heads.
        mask_requires_grad: and it wants a gradient.
        dropout_p: the probability with which a weight is dropped.
        is_causal: each query row sees the keys up to its own place.
        requires_grad: a backward follows.
        layout: how query, key and value lie in memory: "bhsd" (contiguous), "bshd", "sbhd",
            "packed-qkv", "packed-sbhd", "expanded-kv", or for any of "query", "key", "value" its
            strides (batch, head, row) in elements.
        backends: those that could take the call, of "flash", "efficient", "cudnn".
        torch_version: a release such as "2.9.0"; None means the installed one, "any"
            every supported one.
        capability: the GPU's compute capability, such as (9, 0), for limits that only some have.

    Returns:
        What was found: ``ok``, ``findings``, ``plan``; ``print`` it for a table.

    Raises:
        ValueError, TypeError: an argument is not what is allowed; the message says what is.

    >>> from sdpa_guard import check
    >>> verdict = check(400, 4, 10496, 128, torch_version="2.9.0")
    >>> verdict.ok
    False
    >>> print(verdict.plan)
    2 calls of 200 batch entries
    """
    seq_k = seq_q if seq_k is None else seq_k
    kv_heads = heads if kv_heads is None else kv_heads
    batch, heads = _size("batch", batch), _size("heads", heads)
    seq_q, head_dim = _size("seq_q", seq_q), _size("head_dim", head_dim)
    seq_k, kv_heads = _size("seq_k", seq_k), _size("kv_heads", kv_heads)
    if heads % kv_heads != 0:
        raise ValueError(f"kv_heads must divide heads ({heads}), not {kv_heads}")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype such as torch.bfloat16, not {dtype!r}")
    flags = {"mask": mask, "mask_requires_grad": mask_requires_grad, "is_causal": is_causal}
    for name, flag in {**flags, "requires_grad": requires_grad}.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, not {flag!r}")
    if not isinstance(dropout_p, (int, float)):
        raise TypeError(f"dropout_p must be a number, not {dropout_p!r}")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p must be between 0 and 1, not {dropout_p!r}")
    if is_causal and mask:
        raise ValueError("mask must be False with is_causal=True: torch takes one or the other")
    if mask_requires_grad and not mask:
        raise ValueError("mask_requires_grad must be False without a mask")
    backends = check_names("backends", backends, BACKENDS)
    strides = lay_out(
        layout, Sizes(batch, heads, seq_q, head_dim), Sizes(batch, kv_heads, seq_k, head_dim)
    )
    call = call_of_sizes(
        batch,
        heads,
        seq_q,
        head_dim,
        seq_k=seq_k,
        kv_heads=kv_heads,
        dtype=dtype,
        mask=plain_mask(seq_q, seq_k, mask_requires_grad) if mask else None,
        dropout_p=dropout_p,
        is_causal=is_causal,
        needs_backward=requires_grad or mask_requires_grad,
        query_strides=strides.query,
        key_strides=strides.key,
        value_strides=strides.value,
    )
    if not requires_grad:
        call = dataclasses.replace(
            call, only_mask_grad=mask_requires_grad, expanded_grads=frozenset()
        )
    return judge(call, backends, _releases(torch_version), capability)


def judge(
    call: Call,
    backends: tuple[Backend, ...],
    releases: tuple[Release, ...],
    capability: Optional[tuple[int, int]] = None,
) -> Verdict:
    """The verdict on a call's facts."""
    judged = tuple(limit for limit in on_gpu(LIMITS, capability) if limit.backend in backends)
    findings = sorted(examine(call, judged, releases), key=lambda f: -f.ratio)
    plan = cure(call, judged, releases) if any(f.over for f in findings) else None
    return Verdict(call, releases, tuple(findings), plan, judged, backends)


def largest_batch(verdict: Verdict) -> Optional[int]:
    """The largest batch with which the call fits as it is.

    None where one entry is over a limit already, or where no batch is over one.
    """

    def fits(batch: int) -> bool:
        call = dataclasses.replace(verdict.call, batch=batch)
        return not exceeded(call, verdict.judged, verdict.releases)

    return largest(fits, 1, LARGEST_SIZE) if fits(1) and not fits(LARGEST_SIZE) else None


def _releases(torch_version: Optional[str]) -> tuple[Release, ...]:
    if torch_version is None:
        return (RUNNING_TORCH,)
    return RELEASES if torch_version == "any" else (parse_release(torch_version),)


def _size(name: str, size: object) -> int:
    if not isinstance(size, SupportsIndex) or isinstance(size, bool):
        raise TypeError(f"{name} must be a whole number, not {size!r}")
    # A plain number from here on: numpy's wrap around where the kernels' do.
    number = operator.index(size)
    if not 1 <= number <= LARGEST_SIZE:
        raise ValueError(f"{name} must be 1 or more, {LARGEST_SIZE} at most, not {number}")
    return number
