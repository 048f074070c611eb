"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from covist.budget import Budget
from covist.eval.comparing import FEWEST
from covist.eval.records import budget_size
from covist.methods.grammar import VANILLA
from covist.units import counted, interval, percent

if TYPE_CHECKING:
    from covist.eval.results import Results, Score

MIXED_TIMES = "* not all timed in the same call as vanilla: do not compare"
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
            _markdown_differences(results),
        ]
    return "\n\n".join(parts) + "\n"


def plain_text(results: Results) -> str:
    """Scores and paired differences, aligned for a terminal."""
    scores = text_table(*score_table(results))
    timed = [MIXED_TIMES] if any(score.times_mixed for score in results.scores) else []
    parts = [f"{results.suite}: {results.about}", "\n".join([scores, *timed])]
    if results.differences:
        parts += [text_table(*difference_table(results)), correction_note(results)]
    return "\n\n".join(parts)


def correction_note(results: Results) -> str:
    """What the columns "clear" and "Holm" mean."""
    if results.images < FEWEST:
        return f"No difference is called clear with fewer than {counted(FEWEST, results.unit)}: it may be chance."
    return (
        "Clear: chance alone makes so large a difference in at most 5% of comparisons (p of a sign-flip test). "
        f"Holm: clear after correction for the {counted(len(results.differences), 'comparison')} in this table, "
        "so that the chance of any false one among them is 5%."
    )


def score_table(results: Results, same: bool = True) -> tuple[list[str], list[list[str]]]:
    """Head and rows with the scores of every run; `same` adds the share of same answers."""
    apart, accuracy = results.cache_differs, not results.by_agreement
    head = [
        *("method", "K", "tokens", *["cached"] * apart, *["accuracy"] * accuracy, results.measure, "95 %"),
        *(*["same answers"] * same, f"s/{results.unit}"),
    ]
    rows = [
        [
            score.method,
            str(score.budget),
            _short(score.mean_tokens),
            *[_short(score.mean_cached_tokens)] * apart,
            *[percent(score.accuracy)] * accuracy,
            percent(score.retention),
            interval(score.retention_interval) if score.reached else score.standing,
            *[percent(score.same_answers)] * same,
            f"{score.seconds_per_image:.3f}" + "*" * score.times_mixed,
        ]
        for score in results.scores
    ]
    return head, rows


def difference_table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows with every paired difference."""
    title = f"paired {results.measure} difference"
    rows = [
        [
            one.method,
            str(one.budget),
            percent(one.retention, signed=True),
            interval(one.interval, signed=True),
            "yes" if one.is_clear else "",
            "yes" if one.is_clear_among_all else "",
        ]
        for one in results.differences
    ]
    return [title, "K", f"to {results.differences[0].against}", "95 %", "clear", "Holm"], rows


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a terminal; the first column is left-aligned, the others right-aligned.

    >>> print(text_table(["method", "K"], [["random", "128"], ["vanilla", "6"]]))
    method     K
    ------------
    random   128
    vanilla    6
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    written = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
    return "\n".join([written[0], "-" * (sum(widths) + 2 * len(widths) - 2), *written[1:]])


def _short(mean: float) -> str:
    return f"{mean:.1f}".removesuffix(".0")


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
            percent(score.mean_tokens),
            *([percent(score.mean_cached_tokens)] if apart else []),
            *([] if results.by_agreement else [percent(score.accuracy)]),
            percent(score.retention),
            *(percent(score.families[family]) for family in results.families),
            percent(score.same_answers),
            percent(score.seconds_per_image, 3) + ("*" if score.times_mixed else ""),
        ]
        for score in results.scores
    ]
    return markdown_table(head, rows)


def _markdown_differences(results: Results) -> str:
    """Every paired difference with its interval."""
    _, rows = difference_table(results)
    return markdown_table(["method", "budget", "difference", "95%", "clear", "Holm"], rows)


def _with_interval(score: Score) -> str:
    found = with_interval(score.retention, score.retention_interval)
    return found if score.reached else f"{score.standing}; at {percent(score.counted_tokens)} tokens: {found}"


def with_interval(value: float, interval: tuple[float, float], signed: bool = False) -> str:
    """A figure with its interval: 97.1 [96.0, 98.2]."""
    low, high = (percent(end, signed=signed) for end in interval)
    return f"{percent(value, signed=signed)} [{low}, {high}]"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
