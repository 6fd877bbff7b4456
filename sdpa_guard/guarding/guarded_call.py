"""One call from its arguments to its result: it is read, judged, and left, split or refused.

What the guard counts, lists, warns of and raises for a judged call, it does here.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Optional

import torch

from ..errors import OversizedCallError, SDPAGuardWarning
from ..limits.backends import Backend
from ..limits.call import Call
from ..limits.findings import fullest
from ..limits.plan import Plan
from . import messages, symbolic_sizes, torch_answers
from .arguments import Arguments, bind, is_compiling, is_fake, is_stand_in, read
from .call_site import call_site
from .decision import Answers, Decision, decide, limits_of
from .guard_memory import Memory
from .options import Options
from .run_plan import TorchCall, run, samples

_log = logging.getLogger("sdpa_guard")


class _Outcome(NamedTuple):
    """What to do with a call."""

    #: The plan to run; None: the call is made as it came.
    plan: Optional[Plan] = None
    #: False: the guard does not judge this call and hands it on.
    judged: bool = True
    #: It is inside every bound, whichever backend takes it: such calls can be recognised.
    trusted: bool = False


_NOT_JUDGED = _Outcome(judged=False)
_AS_IT_CAME = _Outcome()


def attend(
    make: TorchCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    memory: Memory,
    hand_on: Optional[TorchCall] = None,
) -> torch.Tensor:
    """Make the call as the guard wants it: as it came, or in the chunks of a plan.

    ``hand_on`` makes a call that the guard does not judge; ``make`` unless given.
    """
    arguments = _bound(args, kwargs)
    if arguments is None:
        return (hand_on or make)(*args, **kwargs)
    if is_compiling(arguments.query):
        return trace(make, args, kwargs, memory.options)
    outcome = _judge_safely(arguments, memory)
    if not outcome.judged:
        return (hand_on or make)(*args, **kwargs)
    if outcome.plan is not None:
        return run(outcome.plan, _counted(make, memory), arguments)
    result = make(*args, **kwargs)
    if outcome.trusted:
        memory.trust(args, kwargs)  # now that torch has taken it
    return result


def trace(
    make: TorchCall, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> torch.Tensor:
    """The same in code that torch.compile traces: it may split and raise, but counts and warns of
    nothing."""
    arguments = _bound(args, kwargs)
    plan = None if arguments is None else _plan_of_traced(arguments, options)
    if arguments is None or plan is None:
        return make(*args, **kwargs)
    return run(plan, make, arguments)


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optional[Arguments]:
    try:
        return bind(*args, **kwargs)
    except TypeError:
        return None  # torch raises its own error for such arguments


def _counted(make: TorchCall, memory: Memory) -> TorchCall:
    def count(*args: Any, **kwargs: Any) -> torch.Tensor:
        memory.ledger.chunks.add()
        return make(*args, **kwargs)

    return count


def _plan_of_traced(arguments: Arguments, options: Options) -> Optional[Plan]:
    if options.policy == "warn" or not symbolic_sizes.are_known(arguments):
        return None
    call = read(arguments, options.device_types, is_traced=True)
    if call is None:
        return None
    taken = torch_answers.enabled()
    answers = Answers(options.releases(real=call.device_type == "cuda"), taken)
    if not symbolic_sizes.may_compare(call, limits_of(options, answers)):
        return None
    decision = decide(options, call, answers)
    # Dynamo allows nothing else of what an eager call leads to.
    if decision.action == "refuse" and options.policy == "raise":
        raise _refusal(call, decision, answers)
    return decision.plan if decision.action == "split" else None


def _judge_safely(arguments: Arguments, memory: Memory) -> _Outcome:
    """The outcome; an error inside the guard leaves the call as it is, with one warning."""
    try:
        return _judge(arguments, memory)
    except (OversizedCallError, SDPAGuardWarning):
        raise
    except Exception as fault:
        _log.debug("fault while judging a call", exc_info=True)
        memory.warn_once("fault", messages.could_not_judge(fault), call_site())
        return _AS_IT_CAME


def _judge(arguments: Arguments, memory: Memory) -> _Outcome:
    call = read(arguments, memory.options.device_types)
    if call is None:
        return _NOT_JUDGED
    ledger = memory.ledger
    ledger.calls.add()
    # torch can name a backend only for real tensors in plain eager mode.
    real = call.device_type == "cuda" and not is_fake(arguments.query)
    releases = memory.options.releases(real)
    capability = torch_answers.capability(arguments.query) if real else None
    findings = memory.examine(call, releases, capability)
    over = any(finding.over for finding in findings)
    if not over and not ledger.lists_every_call:
        # A call on stand-ins may go into compiled code, which counts nothing.
        return _Outcome(trusted=not is_stand_in(arguments.query))
    asks = real and call.lanes == 1
    taken = _taken_by(arguments, memory) if asks else torch_answers.enabled()
    call = call.with_numbers() if over else call
    answers = Answers(releases, taken, capability)
    decision = memory.decide(call, answers) if over else Decision("leave")
    if decision.action == "leave":
        if ledger.lists_every_call:
            could_meet = [f for f in findings if f.limit.backend in taken]
            ledger.inside(call_site(), call, fullest(could_meet))
        return _AS_IT_CAME
    while asks and decision.plan is not None:
        # A chunk can go to another backend than the whole call, whose limits then count as well.
        chunks = samples(decision.plan, arguments)
        others = frozenset().union(*[_taken_by(chunk, memory) for chunk in chunks])
        if others <= answers.backends:
            break
        answers = answers._replace(backends=answers.backends | others)
        # The call itself is over what it was over before.
        decision = memory.decide(call, answers)._replace(over=decision.over)
    return _Outcome(_act(decision, call, answers, memory))


def _act(decision: Decision, call: Call, answers: Answers, memory: Memory) -> Optional[Plan]:
    """Count, list, warn or raise as the decision wants it; returns the plan that is to be run."""
    site, worst = call_site(), fullest(decision.over)
    if decision.action == "split" and decision.plan is not None:
        _log.info("%s: %s: %s", site, call, decision.plan)
        memory.ledger.split_up(site, call, worst, decision.plan)
        uncured = [finding for finding in decision.over if not finding.limit.cures]
        if uncured:
            message = messages.explain(call, uncured, None, answers.releases)
            memory.warn_once((site, "uncured"), f"{site}: {message}", site)
        return decision.plan
    memory.ledger.left(site, call, worst, decision.plan)
    refusal = _refusal(call, decision, answers, f"{site}: ")
    if memory.options.policy == "raise":
        raise refusal
    memory.warn_once(site, str(refusal), site)
    return None


def _refusal(
    call: Call, decision: Decision, answers: Answers, where: str = ""
) -> OversizedCallError:
    message = messages.explain(call, decision.over, decision.plan, answers.releases)
    return OversizedCallError(f"{where}{message}")


def _taken_by(arguments: Arguments, memory: Memory) -> frozenset[Backend]:
    """The backend that torch chooses for these tensors, as a set of one or none."""
    choice = torch_answers.choice(arguments)
    if choice.stand_in is not None:
        message = messages.stand_in_is_active(choice.stand_in)
        memory.warn_once(choice.stand_in, message, call_site())
    return choice.backends
