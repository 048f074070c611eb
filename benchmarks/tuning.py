"""How often `covist tune` agrees with an evaluation of all budgets on all images, and at what share of its cost.

    python benchmarks/tuning.py RECORDS [--methods covist-fixed,covist-pro] [--limit 160] [--seeds 20] [--keep 90 95 97]

RECORDS is a directory of answers. Missing answers are computed first and stored there, so that a second call takes
little time (`covist eval --budgets 16,24,32,48,64,96,128,192 --out RECORDS` fills it too). Answers are deterministic,
so the race is replayed over them: another seed is another order of the images. The cost is the number of images x runs
that must be answered, including the uncompressed model.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import mean

from common import verdict

from covist.eval import evaluate, load_suite, tune
from covist.eval.racing import Verdict
from covist.eval.tuning import Tuned
from covist.request.loading import load_model

LADDER = "16,24,32,48,64,96,128,192"
AGREEING, COST = 0.9, 0.75


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records")
    parser.add_argument("--suite", default="scenes")
    parser.add_argument("--methods", default="covist-fixed")
    parser.add_argument("--limit", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--keep", type=float, nargs="+", default=[90.0, 95.0, 97.0])
    asked = parser.parse_args()
    suite = load_suite(asked.suite)
    shared = {"suite": suite, "model": load_model(suite.model), "limit": asked.limit, "out": asked.records}
    evaluate(asked.methods, LADDER, **shared)
    for keep in asked.keep:
        search = partial(tune, keep, methods=asked.methods, budgets=LADDER, **shared)
        whole, races = search(early=False), [search(seed=seed) for seed in range(asked.seeds)]
        same = mean(choice(race) == choice(whole) for race in races)
        print(f"keep {keep:g}: all budgets on all images choose {choice(whole)}")
        print(verdict(f"  share of {asked.seeds} seeds that choose the same", same, AGREEING, at_least=True))
        print(verdict("  mean share of the answers", mean(race.answered / race.exhaustive for race in races), COST))
        for seed, race in enumerate(races):
            if choice(race) != choice(whole):
                print(f"  seed {seed}: {choice(race)}")


def choice(tuned: Tuned) -> str:
    passing = [tried for tried in tuned.curve if tried.verdict is Verdict.PASSES]
    return "none" if tuned.setup is None or not passing else f"{tuned.setup.method} {tuned.setup.budget}"


if __name__ == "__main__":
    main()
