"""The search for a better treatment of videos by CoViST-Max: what was tried, on development films.

A configuration is the name of a method with settings; docs/video.md lists them all. `film-max` alone is what covist-max
became, and `film-max:time=0,factors=kernel` what it was, when a video was an image to it.

    PYTHONPATH=benchmarks python -m studies.films film-max film-max:time=0,factors=kernel evs-runs --limit 100
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.budget import Budget
from covist.contract.method import AttentionRule, plain_rule
from covist.contract.views import ImageContext
from covist.eval import evaluate
from covist.eval.results import Results
from covist.eval.runner import read_budgets
from covist.eval.statistics import Estimate
from covist.eval.suite import HALVES
from covist.formulas.content import ROUNDING, novelty
from covist.formulas.greedy import greedy_coverage
from covist.formulas.ops import mass_norm, unit_rows
from covist.methods.covist_max import CovistMax, represent
from covist.methods.frames import by_frame
from covist.methods.layout import allot
from covist.methods.published.evs import EVS
from covist.methods.registry import register_method
from covist.methods.shared import joined
from covist.reduction import Reduction
from covist.state import VisualState
from studies.variants import table, written

LEAST_CHANGE = 0.1  # in units of D: no weight is zero
INNER_FRAMES = 0.25  # their weight, if that of the first and the last frame is 1


def beside(affinity: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Affinities [N] to the same place one frame before and one after; 0 where the video begins or ends."""
    to_next = affinity.diagonal(places)
    nothing = to_next.new_zeros(places)
    return torch.cat([nothing, to_next]), torch.cat([to_next, nothing])


def same_place(affinity: Tensor, places: int) -> Tensor:
    place = torch.arange(len(affinity)) % places
    return affinity * (place[:, None] == place)


def rarity(affinity: Tensor) -> Tensor:
    return mass_norm(1 / affinity.square().sum(1))


def change(affinity: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Distances [N], in units of D, to the same place one frame before and one after; 0 where there is none."""
    before, after = (torch.where(one > 0, -one.log() / 2, 0) for one in beside(affinity, places))
    return before, after


def novelty_squared(affinity: Tensor, places: int) -> Tensor:
    """Novelty by the kernel, the square of the affinity."""
    return 1 - torch.minimum(*beside(affinity, places)).square()


def inner_novelty(affinity: Tensor, places: int) -> Tensor:
    """Novelty by the frames that there are: the first and the last one have no advantage."""
    before, after = beside(affinity, places)
    before[:places], after[-places:] = after[:places], before[-places:]
    return 1 - torch.minimum(before, after).square()


def ends_first(affinity: Tensor, places: int) -> Tensor:
    factor = torch.full((len(affinity),), INNER_FRAMES)
    factor[:places] = factor[-places:] = 1
    return factor


def shared(mass: Tensor, affinity: Tensor) -> Tensor:
    """Tokens with a mass [N] share it with those that show the same."""
    return mass / (affinity.square() @ mass)


Factor = Callable[[Tensor, Tensor, int], Tensor]
FACTORS: dict[str, Factor] = {  # of the affinity by content c and with time s [N, N], and the places n of a frame
    "one": lambda c, s, n: torch.ones(len(c)),
    "kernel": lambda c, s, n: rarity(s),
    "content": lambda c, s, n: rarity(c),
    "place": lambda c, s, n: rarity(same_place(c, n)),
    "kernel-and-place": lambda c, s, n: 1 / (s.square().sum(1) + same_place(c, n).square().sum(1)),
    "change": lambda c, s, n: torch.maximum(*change(c, n)) + LEAST_CHANGE,
    "changed": lambda c, s, n: change(c, n)[0] + LEAST_CHANGE,
    "new": lambda c, s, n: 1 - beside(c, n)[0].square(),
    "new-or-old": lambda c, s, n: 1 - torch.stack(beside(c, n)).square().mean(0),
    "content-novelty": lambda c, s, n: novelty_squared(c, n),
    "content-novelty-root": lambda c, s, n: novelty_squared(c, n).sqrt(),
    "inner-novelty": lambda c, s, n: inner_novelty(c, n),
    "novelty": lambda c, s, n: novelty(s, n),
    "novelty-squared": lambda c, s, n: novelty_squared(s, n),
    "ends": lambda c, s, n: ends_first(c, n),
    "shared-novelty": lambda c, s, n: shared(novelty_squared(s, n), s),
    "shared-content-novelty": lambda c, s, n: shared(novelty_squared(c, n), s),
    "half-novelty": lambda c, s, n: rarity(s) + mass_norm(rarity(s) * novelty_squared(c, n)),
    "half-place": lambda c, s, n: (
        mass_norm(rarity(s) * rarity(same_place(c, n))) + mass_norm(rarity(s) * novelty_squared(c, n))
    ),
}


class FilmMax(CovistMax):
    """CoViST-Max with other affinities, weights, shares of frames and contents."""

    name = "film-max"
    options: ClassVar = CovistMax.options | {
        "time": "factor of |t - t'|, the time of the film being 1; budget: the share of tokens that stay, per frame",
        "width": "factor of d / D",
        "window": "so many frames before and after take part in what a token is compared by",
        "factors": "of the coverage weights, joined by +",
        "content": "of a representative: mean, or own",
        "equal": "on: every frame gets the same budget, and stands for itself if it has tokens",
    }

    def __init__(
        self,
        time: float | str = 2,
        width: float = 2,
        window: int = 0,
        factors: str = "kernel+novelty",
        content: str = "mean",
        equal: bool = False,
        **options: Any,
    ):
        super().__init__(**options)
        self.time, self.width, self.window, self.content, self.equal = time, width, window, content, equal
        self.factors = [FACTORS[name] for name in factors.split("+")]

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        features = image.signals.embeddings if self.features == "embeddings" else image.signals.hidden
        frames = by_frame(unit_rows(features), image.grid)  # [F, n, v]
        content, timed = self._affinities(frames, count)
        places = frames.shape[1]
        if self.equal:
            kept, allowed = equal_shares(content, places, count)
            return self._represented(state, kept, content * allowed)
        omega = mass_norm(torch.stack([factor(content, timed, places) for factor in self.factors]).prod(0))
        kept = covering(timed, omega, count)
        return self._represented(state, kept, timed)

    def _affinities(self, frames: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """By content, and with time."""
        total, places = frames.shape[:2]
        number = torch.arange(total)
        seen = [frames[(number + step).clamp(0, total - 1)] for step in range(-self.window, self.window + 1)]
        joint = torch.cat(seen, dim=-1).flatten(0, 1)
        distance = (1 - joint @ joint.T / len(seen)).clamp(min=0)
        content = (-self.width * distance / (distance.amax(1).mean() + ROUNDING)).exp().fill_diagonal_(1)
        rate = count / len(joint) if self.time == "budget" else float(self.time) / total
        times = number.repeat_interleave(places).float()
        return content, content * (-rate * (times[:, None] - times).abs()).exp()

    def _represented(self, state: VisualState, kept: Tensor, affinity: Tensor) -> Reduction:
        assignment = joined(affinity[:, kept], kept)
        (reduced,) = represent([state], kept[None], assignment[None])
        if self.content == "own":
            reduced = reduced.with_features(state.features[kept])
        return Reduction(reduced, assignment=assignment)


def covering(affinity: Tensor, omega: Tensor, count: int) -> Tensor:
    return greedy_coverage(affinity, omega, torch.empty(0, dtype=torch.long), count).nonzero()[:, 0]


def equal_shares(affinity: Tensor, places: int, count: int) -> tuple[Tensor, Tensor]:
    """Coverage in each frame on its own -> tokens [count], and which may represent which [N, N]."""
    frame, kept = torch.arange(len(affinity)) // places, []
    for number, share in enumerate(allot(count, frame.bincount().tolist())):
        own = slice(number * places, (number + 1) * places)
        inside = affinity[own, own].contiguous()
        if share:
            kept.append(own.start + covering(inside, rarity(inside), share))
    is_same = frame[:, None] == frame
    return torch.cat(kept), is_same if count >= len(frame) // places else torch.ones_like(is_same)


class EVSRuns(EVS):
    """EVS, whose tokens weigh as many frames as they stay the last one kept at their place."""

    name = "evs-runs"

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        reduced = state.restrict(self.select(image, count).sort().values)
        places = image.grid.size // image.grid.matching_frames
        time, place = state.indices // places, state.indices % places
        is_here = place[:, None] == place[reduced.indices]  # [N, K]
        is_past = is_here & (time[:, None] >= time[reduced.indices])
        latest = torch.where(is_past, time[reduced.indices], -1).argmax(1)
        owner = torch.where(is_past.any(1), latest, is_here.long().argmax(1))  # earlier tokens go with the first one
        return Reduction(reduced.replace(weights=owner[is_here.any(1)].bincount(minlength=count).float()))

    def attention_rule(self, decoder: Any) -> AttentionRule:
        return plain_rule(decoder.layers, decoder.heads)


def register() -> None:
    """Make the methods of the study known by their names."""
    for own in (FilmMax, EVSRuns):
        register_method(own)


def retentions(results: Results, budgets: Sequence[Budget]) -> str:
    """A row for each method, with 95 % intervals."""
    cells = {
        (score.method, score.budget): written(Estimate(score.retention, score.retention_interval))
        for score in results.scores[1:]
        if score.reached
    }
    return _table("method", cells, budgets)


def differences(results: Results, budgets: Sequence[Budget]) -> str:
    """The first method minus each of the others; a star where that is clear after Holm's correction."""
    cells = {
        (one.method, one.budget): written(Estimate(-one.retention, (-one.interval[1], -one.interval[0])), "+")
        + " *" * one.is_clear_among_all
        for one in results.differences
    }
    return _table(f"{results.reference} minus", cells, budgets)


def _table(head: str, cells: Mapping[tuple[str, Budget], str], budgets: Sequence[Budget]) -> str:
    methods = dict.fromkeys(method for method, _ in cells)
    rows = [[method, *(cells.get((method, budget), "not reachable") for budget in budgets)] for method in methods]
    return table([head, *map(str, budgets)], rows)


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("methods", nargs="+", help="film-max with settings, evs-runs, or any method of covist")
    options.add_argument("--limit", type=int, default=100, help="films")
    options.add_argument("--half", choices=HALVES, default="even")
    options.add_argument("--budgets", default="25%,10%,5%")
    options.add_argument("--out", help="a directory for answers, with which a stopped study continues")
    given = options.parse_args(arguments)
    register()
    budgets = read_budgets(given.budgets)
    results = evaluate(given.methods, budgets, suite="films", half=given.half, limit=given.limit, out=given.out)
    results = replace(results, reference=given.methods[0])
    print(retentions(results, budgets), differences(results, budgets), sep="\n\n")


if __name__ == "__main__":
    main()
