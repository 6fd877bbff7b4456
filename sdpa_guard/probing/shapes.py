"""Which shapes to try on this GPU, and what the registry predicts of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from ..limits.backends import takes
from ..limits.findings import exceeded
from ..limits.limit import Limit
from ..limits.registry import LIMITS
from ..limits.releases import Release
from .gpu_memory import needed_gib
from .measurement import FAILS, FITS, GUARDED, UNGUARDED
from .recipes import RECIPES, Around
from .trial import Trial


class Planned(NamedTuple):
    """One step to measure: unguarded or guarded, predicted to fit or to fail."""

    trial: Trial
    how: str
    predicted: str


class Skipped(NamedTuple):
    """What is not measured of a limit, and why; the first of several shapes for one reason."""

    limit: str
    shape: str
    reason: str


class Shapes(NamedTuple):
    planned: tuple[Planned, ...]
    skipped: tuple[Skipped, ...]


def shapes(
    limits: Iterable[Limit],
    release: Release,
    memory_gib: float,
    quick: bool = False,
    dtype: str = "bfloat16",
) -> Shapes:
    """What to measure of the limits: just under, at and just over each bound, without and with
    the guard, for several head dims.

    Args:
        release: the torch release that is measured; it decides what is expected.
        memory_gib: the GPU memory that a step may take.
        quick: only limits that the release has, the first shape that can be tried, at and just
            over the bound, guarded where it fails without.
        dtype: the name of the torch dtype.
    """
    planned: list[Planned] = []
    skipped: list[Skipped] = []
    for limit in limits:
        obstacles: list[Skipped] = []
        found: list[Planned] = []
        for around in _candidates(limit, dtype, obstacles):
            if quick and not limit.affects(release):
                obstacles.append(Skipped(limit.id, "", f"torch {release} does not have it"))
                break
            reason = _obstacle(limit, around.all, release, memory_gib)
            if reason is not None:
                obstacles.append(Skipped(limit.id, str(around.over), reason))
                continue
            found += _attempts(limit, around, release, quick)
            if quick:
                break
        planned += found
        if not (quick and found):
            skipped += {skip.reason: skip for skip in reversed(obstacles)}.values()
    return Shapes(tuple(planned), tuple(skipped))


def _candidates(limit: Limit, dtype: str, obstacles: list[Skipped]) -> Iterator[Around]:
    recipes = RECIPES.get(limit.id, ())
    if not recipes:
        obstacles.append(Skipped(limit.id, "", "the probe has no call that reaches it"))
    for recipe in recipes:
        for dim in recipe.dims:
            around = recipe.around(limit, dim, dtype)
            if around is not None:
                yield around
            else:
                reason = "no size of this shape crosses the bound"
                obstacles.append(Skipped(limit.id, f"head dim {dim}", reason))


def _attempts(limit: Limit, around: Around, release: Release, quick: bool) -> Iterator[Planned]:
    for trial in (around.at, around.over) if quick else around.all:
        predicted = FAILS if exceeded(trial.call, [limit], (release,)) else FITS
        yield Planned(trial, UNGUARDED, predicted)
        if not quick or predicted == FAILS:
            yield Planned(trial, GUARDED, FITS)


def _obstacle(
    limit: Limit, trials: Sequence[Trial], release: Release, memory_gib: float
) -> Optional[str]:
    if not all(takes(limit.backend, trial.call, release) for trial in trials):
        return f"{limit.backend} does not take such calls on torch {release}"
    needed = max(map(needed_gib, trials))
    if needed > memory_gib:
        return f"needs {needed:.1f} GiB of GPU memory, {memory_gib:.1f} may be used"
    others = {f.limit.id for t in trials for f in exceeded(t.call, _beside(limit), (release,))}
    if others:
        return f"over {', '.join(sorted(others))} as well on torch {release}"
    return None


def _beside(limit: Limit) -> list[Limit]:
    """The other limits that a trial of this one could meet: those of its backend.

    E7b is not among them for E7a: it counts a single entry of one head as well, which starts at
    offset 0, so that its kernel does no wrong there.
    """
    apart = (limit.id, {"E7a": "E7b"}.get(limit.id))
    return [o for o in LIMITS if o.backend == limit.backend and o.id not in apart]
