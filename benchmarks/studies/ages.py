"""An image that ages: is one reduction from all its tokens better than one reduction after the other?

CoViST-Max keeps the same tokens either way; what differs is which of them represents a token that is not kept.

PYTHONPATH=benchmarks python -m studies.ages --ages 256,128,64,16 --limit 60
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import ClassVar

import torch

from covist.contract.views import ImageContext
from covist.eval import evaluate
from covist.eval.tables import markdown_table
from covist.methods.covist_max import CovistMax
from covist.methods.registry import register_method
from covist.methods.shared import cluster_means, joined
from covist.reduction import Reduction
from covist.state import VisualState
from covist.units import interval, percent


class StepByStep(CovistMax):
    """CoViST-Max through every larger age before the count that is asked for."""

    name = "covist-max-step-by-step"
    ages: ClassVar[tuple[int, ...]] = (256, 128, 64, 16)

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        affinity = self._coverage(image).affinity
        steps = [*(age for age in self.ages if count < age < state.count), count]
        kept = [torch.arange(state.count), *(CovistMax.enter(self, image, state, k).state.indices for k in steps)]
        owner = kept[0]
        for before, after in pairwise(kept):
            places = torch.searchsorted(before, after)
            owner = joined(affinity[before][:, after], places)[owner]
        means, sizes = cluster_means(state.features, owner, count)
        reduced = state.restrict(kept[-1]).replace(features=means.to(state.features), weights=sizes)
        return Reduction(reduced, assignment=owner)


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ages", default="256,128,64,16")
    options.add_argument("--limit", type=int, default=60, help="images of the first test bed, its odd half")
    given = options.parse_args(arguments)
    StepByStep.ages = tuple(int(age) for age in given.ages.split(","))
    register_method(StepByStep)
    methods = f"{CovistMax.name},{StepByStep.name}"
    results = evaluate(methods, given.ages, half="odd", limit=given.limit)
    rows = [
        [score.method, str(score.budget), percent(score.retention), interval(score.retention_interval)]
        for score in results.scores[1:]
    ]
    print(markdown_table(["method", "tokens", "retention, %", "95 % interval"], rows))


if __name__ == "__main__":
    main()
