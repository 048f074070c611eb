"""Results as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from covist.budget import Budget
from covist.eval.comparing import FEWEST
from covist.eval.records import budget_size
from covist.methods.grammar import VANILLA
from covist.units import counted

if TYPE_CHECKING:
    from covist.eval.results import Results, Score


_MEANING = {
    "retention": "Retention is the mean over the families of score / vanilla score.",
    "agreement": "Agreement is the mean over the families of the share of an answer's tokens before the first that "
    "differs from the uncompressed model's answer.",
}


def markdown(results: Results) -> str:
    """Retention by method and budget, then every score per family, then the paired differences."""
    measure = results.measure.capitalize()
    parts = [
        f"# Suite {results.suite}: {results.about}",
        f"All scores in percent. Brackets hold 95% intervals over {results.unit}s (bootstrap). "
        f"{_MEANING[results.measure]} *Same answers*: the share of questions with exactly the uncompressed model's "
        "answer. *Not reachable*: the method cannot keep as few tokens as the budget says; the score belongs to the "
        "smallest mean that it can reach, and is not ranked. *Nominal*: the published counts for the budget, whose "
        "mean is above it; not ranked either. An asterisk marks times that were not all measured in the same call as "
        "vanilla's: do not compare them.",
        f"## {measure}",
        retention_table(results),
        "## Scores per family",
        _family_table(results),
    ]
    if results.differences:
        parts += [
            f"## {measure} minus that of {results.differences[0].against}, paired",
            correction_note(results),
            _difference_table(results),
        ]
    return "\n\n".join(parts) + "\n"


def correction_note(results: Results) -> str:
    """What the columns "clear" and "Holm" mean."""
    if results.images < FEWEST:
        return f"No difference is called clear with fewer than {counted(FEWEST, results.unit)}."
    return (
        "Clear: p is at most 5% in a sign-flip test, not corrected for multiple comparisons. "
        f"Holm: clear after correction for the {counted(len(results.differences), 'comparison')} in this table, "
        "so that the chance of any false one among them is 5%."
    )


def retention_table(results: Results, order: Sequence[str] = ()) -> str:
    """Retention of every method, by budget; `order` as in `by_budget`."""
    compressed = (score for score in results.scores if score.method != VANILLA)
    return by_budget({(score.method, score.budget): _with_interval(score) for score in compressed}, order)


def by_budget(cells: Mapping[tuple[str, Budget], str], order: Sequence[str] = ()) -> str:
    """A table with a row for each method and a column for each budget, the largest first.

    order: the methods from the top down; without it, that of the cells
    """
    budgets = sorted({budget for _, budget in cells}, key=budget_size, reverse=True)
    found = dict.fromkeys(method for method, _ in cells)
    methods = [method for method in order or found if method in found]
    rows = [[method, *(cells.get((method, budget), "") for budget in budgets)] for method in methods]
    return markdown_table(["method", *map(str, budgets)], rows)


def _family_table(results: Results) -> str:
    apart = results.cache_differs
    tokens = ["mean tokens", "mean cached"] if apart else ["mean tokens"]
    scores = [results.measure] if results.by_agreement else ["accuracy", results.measure]
    head = ["method", "budget", *tokens, *scores, *results.families, "same answers", f"s/{results.unit}"]
    rows = [
        [
            score.method,
            str(score.budget) if score.reached else f"{score.budget}, {score.standing}",
            _text(score.mean_tokens),
            *([_text(score.mean_cached_tokens)] if apart else []),
            *([] if results.by_agreement else [_text(score.accuracy)]),
            _text(score.retention),
            *(_text(score.families[family]) for family in results.families),
            _text(score.same_answers),
            _text(score.seconds_per_image, 3) + ("*" if score.times_mixed else ""),
        ]
        for score in results.scores
    ]
    return markdown_table(head, rows)


def _difference_table(results: Results) -> str:
    """Every paired difference with its interval."""
    rows = [
        [
            one.method,
            str(one.budget),
            _text(one.retention, signed=True),
            _ends(one.interval),
            "yes" if one.is_clear else "",
            "yes" if one.is_clear_among_all else "",
        ]
        for one in results.differences
    ]
    return markdown_table(["method", "budget", "difference", "interval", "clear", "Holm"], rows)


def _with_interval(score: Score) -> str:
    found = with_interval(score.retention, score.retention_interval)
    return found if score.reached else f"{score.standing}; at {_text(score.counted_tokens)} tokens: {found}"


def with_interval(value: float, interval: tuple[float, float], signed: bool = False) -> str:
    """A figure with its interval: 97.1 [96.0, 98.2]."""
    return f"{_text(value, signed=signed)} {_ends(interval, signed)}"


def _ends(interval: tuple[float, float], signed: bool = False) -> str:
    return f"[{_text(interval[0], signed=signed)}, {_text(interval[1], signed=signed)}]"


def _text(value: float, digits: int = 1, signed: bool = False) -> str:
    return f"{value:{'+' if signed else ''}.{digits}f}" if math.isfinite(value) else "–"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
