"""The one decision that both doors make: leave, split, warn or raise."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Optional

import torch

from . import backends, chunked, symbolic
from .call import Arguments, Call, bind, is_compiling, is_fake, is_stand_in, read
from .chunked import TorchCall
from .errors import OversizedCallError, SDPAGuardWarning
from .judge import Finding, exceeded, fullest, remedy
from .plan import Plan
from .release import RUNNING_TORCH, Release
from .reports import call_site
from .settings import Settings

_log = logging.getLogger("sdpa_guard")


class Split(NamedTuple):
    """A call that is to be split, and how."""

    plan: Plan
    arguments: Arguments


class Decision(NamedTuple):
    """What to do with a call: split it, or leave it as it is."""

    split: Optional[Split] = None
    #: Inside every bound, whichever backend takes it.
    inside: bool = False


class _NotPlainError(Exception):
    """The call is none that the guard judges."""


def reroute(
    torch_call: TorchCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settings: Settings,
    unjudged: Optional[TorchCall] = None,
) -> torch.Tensor:
    """Make the call as the settings want it: as it came, or in the chunks of a plan.

    ``unjudged`` makes a call that is none that the guard judges; ``torch_call`` unless given.
    """
    arguments = _bound(args, kwargs)
    if arguments is None:
        return (unjudged or torch_call)(*args, **kwargs)
    if is_compiling(arguments.query):
        split = _trace(arguments, settings)
    else:
        try:
            split, inside = _decide_safely(arguments, settings)
        except _NotPlainError:
            return (unjudged or torch_call)(*args, **kwargs)
        if inside:
            result = torch_call(*args, **kwargs)
            settings.trust(args, kwargs)  # now that torch has taken it
            return result
        torch_call = _counted(torch_call, settings) if split else torch_call
    if split is None:
        return torch_call(*args, **kwargs)
    return chunked.run(split.plan, torch_call, split.arguments)


def _counted(torch_call: TorchCall, settings: Settings) -> TorchCall:
    def count(*args: Any, **kwargs: Any) -> torch.Tensor:
        settings.report.chunk()
        return torch_call(*args, **kwargs)

    return count


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optional[Arguments]:
    try:
        return bind(*args, **kwargs)
    except TypeError:
        return None  # torch says what is wrong with such a call


def _trace(arguments: Arguments, settings: Settings) -> Optional[Split]:
    """The decision in what torch.compile can trace: nothing counted, cached, said or asked."""
    if settings.policy == "warn" or not symbolic.are_known(arguments):
        return None
    call = read(arguments, settings.device_types)
    if call is None:
        return None
    release = _release(call, settings, real=call.device_type == "cuda")
    taken = backends.enabled()
    limits = [limit for limit in settings.limits if limit.backend in taken]
    if not symbolic.may_compare(call, limits):
        return None
    beyond = exceeded(call, limits, release)
    if not beyond:
        return None
    call = call.with_numbers()
    plan = remedy(call, limits, release)
    if settings.policy == "raise":
        raise OversizedCallError(_message(call, beyond, plan, release))
    return None if plan is None else Split(plan, arguments)


def _decide_safely(arguments: Arguments, settings: Settings) -> Decision:
    """The decision; a fault of the guard's own leaves the call as it is, with one warning."""
    try:
        return _decide(arguments, settings)
    except (OversizedCallError, SDPAGuardWarning, _NotPlainError):
        raise
    except Exception as fault:
        _log.debug("fault while judging a call", exc_info=True)
        message = (
            f"sdpa_guard could not judge an attention call and left it as it is: {fault!r}. "
            "Please report it with the shapes of the call."
        )
        settings.warn_once("fault", message, call_site())
        return Decision()


def _decide(arguments: Arguments, settings: Settings) -> Decision:
    call = read(arguments, settings.device_types)
    if call is None:
        raise _NotPlainError
    settings.report.saw()
    # A call on real tensors in plain eager mode is the only one that torch itself can speak of.
    real = call.device_type == "cuda" and not is_fake(arguments.query)
    asks = real and call.lanes == 1
    release = _release(call, settings, real)
    beyond = settings.beyond(call, release)
    if not beyond and not settings.report.lists_every_call:
        # One on stand-ins may be on its way into compiled code, where nothing is counted.
        return Decision(inside=not is_stand_in(arguments.query))
    taken = _taken_by(arguments, settings) if asks else backends.enabled()
    beyond = [f for f in beyond if f.limit.backend in taken]
    if not beyond:
        if settings.report.lists_every_call:
            found = [f for f in settings.examined(call, release) if f.limit.backend in taken]
            settings.report.inside(call_site(), call, fullest(found))
        return Decision()
    call = call.with_numbers()
    plan = settings.plan(call, release, taken)
    while asks and plan is not None:
        # A chunk can go to another backend than the whole call, whose limits then count as well.
        first, last = chunked.ends(plan, arguments)
        others = _taken_by(first, settings) | _taken_by(last, settings)
        if others <= taken:
            break
        taken |= others
        plan = settings.plan(call, release, taken)
    return Decision(_act(call, arguments, beyond, plan, release, settings))


def _act(
    call: Call,
    arguments: Arguments,
    beyond: list[Finding],
    plan: Optional[Plan],
    release: Optional[Release],
    settings: Settings,
) -> Optional[Split]:
    """What the policy says of a call that is over a limit."""
    site, worst = call_site(), max(beyond, key=lambda finding: finding.ratio)
    if settings.policy == "split" and plan is not None:
        _log.info("%s: %s: %s", site, call, plan)
        settings.report.split_up(site, call, worst, plan)
        return Split(plan, arguments)
    settings.report.left(site, call, worst, plan)
    message = f"{site}: {_message(call, beyond, plan, release)}"
    if settings.policy == "raise":
        raise OversizedCallError(message)
    settings.warn_once(site, message, site)
    return None


def _release(call: Call, settings: Settings, real: bool) -> Optional[Release]:
    """The release whose limits count; None, every supported one, in a rehearsal."""
    if settings.release is None and real:
        return RUNNING_TORCH
    return settings.release


def _taken_by(arguments: Arguments, settings: Settings) -> frozenset[str]:
    """The backend that torch chooses for these tensors, as a set of one or none."""
    try:
        backend = backends.chosen(arguments)
    except RuntimeError:
        return frozenset()  # no backend takes the call; torch says so when it is made
    if backend == backends.FLASH:
        stand_in = backends.replaced_flash()
        if stand_in is not None:
            message = (
                f"{stand_in} is active in place of torch's own FlashAttention; its limits are not "
                "known, so sdpa_guard leaves its calls as they are."
            )
            settings.warn_once(stand_in, message, call_site())
            return frozenset()
    return frozenset() if backend is None else frozenset({backend})


def _message(
    call: Call, beyond: list[Finding], plan: Optional[Plan], release: Optional[Release]
) -> str:
    worst, *others = sorted(beyond, key=lambda finding: -finding.ratio)
    where = f"torch {worst.limit.releases}" if release is None else f"torch {release}"
    if plan is not None:
        cure = f'SDPAGuard(policy="split") makes {plan} of it'
    else:
        cure = "no split cures it, so make the call smaller, or choose another backend for it"
        if call.is_causal and "rows" in worst.limit.cures:
            cure = f"is_causal forbids splitting query rows, and {cure}"
        if call.lanes > 1:
            cure = f"torch.vmap runs {call.lanes} calls as one: give it a chunk_size; else {cure}"
        cure += " (torch.nn.attention.sdpa_kernel)"
    also = f" (also over: {', '.join(f.limit.id for f in others)})" if others else ""
    return (
        f"scaled_dot_product_attention({call}) is over limit {worst.limit}: counted "
        f"{worst.counted} > bound {worst.bound}{also}. On {where}: {worst.limit.effect}. "
        f"Cure: {cure}."
    )
