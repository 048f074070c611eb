"""Does a budget that adapts to the image retain more accuracy than a fixed one with the same mean of tokens?

PYTHONPATH=benchmarks python -m studies.adaptive --levels 0.85,0.9,0.93 --half even --limit 24 --out adaptive
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from covist.budget import Budget, Count
from covist.eval.records import Run
from covist.eval.results import Results
from covist.eval.runner import evaluate
from covist.eval.statistics import Interval
from covist.eval.suite import HALVES, SUITES, Suite
from covist.eval.tables import markdown_table, with_interval
from covist.formulas.ops import round_half_up
from covist.outputs import write_json


@dataclass(frozen=True)
class Level:
    """A level of coverage compared with the fixed budget of as many tokens; retention in percent, 95 % intervals."""

    level: float
    mean_tokens: float
    retention: float
    interval: Interval
    fixed_tokens: int
    fixed_retention: float
    fixed_interval: Interval
    difference: float
    difference_interval: Interval


def compare(
    method: str = "covist-fixed",
    levels: Sequence[float] = (0.85, 0.9, 0.93),
    *,
    bounds: str = "",
    suite: str | Suite = "scenes",
    limit: int | None = None,
    half: str | None = None,
    model: Any = None,
    out: str | Path | None = None,
    seed: int = 0,
) -> tuple[list[Level], Results]:
    """Answer a suite at every level, then at fixed budgets of the mean tokens that these levels used.

    bounds: the fewest and most tokens of an image, as "16:192"; by default those of "auto"
    out: a directory for answers, results and figure; a second call continues there
    """
    if out is None:
        with TemporaryDirectory() as folder:
            return compare(
                method, levels, bounds=bounds, suite=suite, limit=limit, half=half, model=model, out=folder, seed=seed
            )
    follow = {level: Budget.parse(":".join(filter(None, ("auto", f"{level:g}", bounds)))) for level in levels}
    asked: dict[str, Any] = {"suite": suite, "limit": limit, "half": half, "model": model, "out": out, "seed": seed}
    adaptive = evaluate(method, list(follow.values()), **asked)
    means = {score.budget: score.mean_cached_tokens for score in adaptive.scores}
    counts = {level: Count(max(1, round_half_up(means[follow[level]]))) for level in levels}
    results = evaluate(method, [*follow.values(), *counts.values()], **asked)
    return [_level(results, method, level, follow[level], counts[level]) for level in levels], results


def _level(results: Results, method: str, level: float, follow: Budget, count: Count) -> Level:
    scores = {(score.method, score.budget): score for score in results.scores}
    own, fixed = scores[method, follow], scores[method, count]
    return Level(
        level,
        own.mean_cached_tokens,
        own.retention,
        own.retention_interval,
        count.tokens,
        fixed.retention,
        fixed.retention_interval,
        *results.between(Run(method, follow), Run(method, count)),
    )


def table(found: Sequence[Level]) -> str:
    """Markdown: one row per level."""
    rows = [
        [
            f"{one.level:g}",
            f"{one.mean_tokens:.1f}",
            with_interval(one.retention, one.interval),
            str(one.fixed_tokens),
            with_interval(one.fixed_retention, one.fixed_interval),
            with_interval(one.difference, one.difference_interval, signed=True),
        ]
        for one in found
    ]
    return markdown_table(["level", "mean tokens", "auto", "fixed at", "fixed", "difference"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare adaptive budgets with fixed ones of as many tokens")
    parser.add_argument("--method", default="covist-fixed")
    parser.add_argument("--levels", default="0.85,0.9,0.93", help="levels of coverage, separated by commas")
    parser.add_argument("--bounds", default="", help="fewest and most tokens of an image, as 16:192")
    parser.add_argument("--suite", default="scenes", choices=list(SUITES))
    parser.add_argument("--half", choices=HALVES, help="only images with even or odd numbers")
    parser.add_argument("--limit", type=int, help="number of images")
    parser.add_argument("--out", type=Path, help="a directory for answers, adaptive.json and retention.png")
    options = parser.parse_args()
    levels = [float(level) for level in options.levels.split(",")]
    found, _ = compare(
        options.method,
        levels,
        bounds=options.bounds,
        suite=options.suite,
        half=options.half,
        limit=options.limit,
        out=options.out,
    )
    if options.out is not None:
        write_json(options.out / "adaptive.json", {"method": options.method, "levels": [asdict(one) for one in found]})
    print(table(found))


if __name__ == "__main__":
    main()
