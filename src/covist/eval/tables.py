"""Results as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from covist.methods.grammar import VANILLA

if TYPE_CHECKING:
    from covist.eval.results import Results, Score


def markdown(results: Results) -> str:
    """Retention by method and budget, then every score per family, then the paired differences."""
    parts = [
        f"# Suite {results.suite}: {results.questions} questions about {results.images} images",
        "All scores in percent. Brackets hold 95% bootstrap intervals over images. Retention is the mean over the "
        "families of score / vanilla score. *Not reachable*: the method cannot keep as few tokens as the budget "
        "says; the score belongs to the smallest mean that it can run at, and is not ranked. An asterisk marks "
        "times that were not all taken in one sitting with vanilla's: do not compare them.",
        "## Retention",
        _retention_table(results),
        "## Scores per family",
        _family_table(results),
    ]
    if results.differences:
        parts += [f"## Retention minus that of {results.differences[0].against}, paired", _difference_table(results)]
    return "\n\n".join(parts) + "\n"


def _retention_table(results: Results) -> str:
    compressed = [score for score in results.scores if score.method != VANILLA]
    budgets = sorted({score.budget for score in compressed}, reverse=True)
    cells = {(score.method, score.budget): _with_interval(score) for score in compressed}
    rows = [
        [method, *(cells.get((method, budget), "") for budget in budgets)]
        for method in dict.fromkeys(score.method for score in compressed)
    ]
    return markdown_table(["method", *map(str, budgets)], rows)


def _family_table(results: Results) -> str:
    apart = results.cache_differs
    tokens = ["mean tokens", "mean cached"] if apart else ["mean tokens"]
    head = ["method", "budget", *tokens, "accuracy", "retention", *results.families, "s/image"]
    rows = [
        [
            score.method,
            str(score.budget) if score.reached else f"{score.budget}, not reachable",
            _text(score.mean_tokens),
            *([_text(score.mean_cached_tokens)] if apart else []),
            _text(score.accuracy),
            _text(score.retention),
            *(_text(score.families[family]) for family in results.families),
            _text(score.seconds_per_image, 3) + ("*" if score.times_mixed else ""),
        ]
        for score in results.scores
    ]
    return markdown_table(head, rows)


def _difference_table(results: Results) -> str:
    rows = [
        [
            one.method,
            str(one.budget),
            _text(one.retention, signed=True),
            _ends(one.interval),
            "yes" if one.is_clear else "",
        ]
        for one in results.differences
    ]
    return markdown_table(["method", "budget", "difference", "interval", "clear"], rows)


def _with_interval(score: Score) -> str:
    found = f"{_text(score.retention)} {_ends(score.retention_interval)}"
    return found if score.reached else f"not reachable; at {_text(score.mean_cached_tokens)} tokens: {found}"


def _ends(interval: tuple[float, float]) -> str:
    return f"[{_text(interval[0])}, {_text(interval[1])}]"


def _text(value: float, digits: int = 1, signed: bool = False) -> str:
    return f"{value:{'+' if signed else ''}.{digits}f}" if math.isfinite(value) else "–"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
