"""How an image enters the decoder: its count, its schedule and its first reduction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter

from covist.contract.method import Outcome
from covist.contract.reading import readable_schedule
from covist.contract.views import ImageContext
from covist.engine.settings import Settings
from covist.schedule import CoverageBudget, Schedule, resolve_budget


@dataclass(frozen=True)
class Beginning:
    """An image before the first layer.

    budget:  the token count of its budget
    missed:  the insufficient coverage of its first reduction, because of which it runs uncompressed; else None
    """

    budget: int
    schedule: Schedule
    outcome: Outcome
    missed: float | None = None


def begin_image(settings: Settings, image: ImageContext) -> Beginning:
    """Reduce an image to its budget, or keep all tokens if their coverage would be too low."""
    begun = _begin(settings, image, _count(settings, image))
    coverage, least = begun.outcome.coverage, settings.min_coverage
    if least is None or coverage is None or coverage >= least:
        return begun
    return replace(_begin(settings, image, image.grid.size), missed=coverage)


def _begin(settings: Settings, image: ImageContext, budget: int) -> Beginning:
    schedule = readable_schedule(settings.method, settings.decoder, budget, image.grid.size)
    return Beginning(budget, schedule, settings.method.begin(image, schedule.tokens_per_layer[0]))


def _count(settings: Settings, image: ImageContext) -> int:
    """The token count of the budget for an image."""
    tokens, frames = image.grid.size, image.grid.frames
    needed = CoverageBudget.read(settings.budget)
    if needed is None:
        return resolve_budget(settings.budget, tokens, frames)
    # Keeping a few more tokens is better than running uncompressed because a little coverage is missing.
    level = max(needed.level, settings.min_coverage or 0.0)
    started = perf_counter()
    count = settings.method.count_for(image, level, *needed.bounds(tokens, frames))
    image.seconds = perf_counter() - started
    return count
