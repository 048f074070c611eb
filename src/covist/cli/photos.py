"""`covist eval --suite photos`: what it needs, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from covist.cli.console import out, table_of_figures
from covist.cli.options import MetricName
from covist.errors import CovistError
from covist.units import interval, percent

if TYPE_CHECKING:
    from covist.eval import Suite
    from covist.eval.photos import PhotoResults, QuestionResults
    from covist.eval.results import Score

PHOTOS = "photos"
WIDE = 116  # columns of a terminal that has room for the word classes


def photos_of(data: str | None, metric: MetricName, model: str | None) -> Suite:
    """The suite of captioned photographs in a folder, or of questions about photographs in a file."""
    from covist.eval.photos import photo_suite

    if data is None:
        raise CovistError("--suite photos needs --data: a folder with captions.txt and images, or a file of questions")
    if model is None:
        raise CovistError("--suite photos needs --model: the embedded models know no photographs")
    if metric is not MetricName.auto:
        raise CovistError("--suite photos has its own measure; omit --metric")
    return photo_suite(data)


def print_photos(results: PhotoResults | QuestionResults, destination: Path | None) -> None:
    from covist.eval.photos import QuestionResults

    out().print(f"\n[bold]photos[/]: {results.about}")
    if isinstance(results, QuestionResults):
        _print_answers(results)
    else:
        _print_captions(results)
    if destination is not None:
        out().print(f"answers and tables in [bold]{escape(str(destination))}[/]")


def _print_answers(results: QuestionResults) -> None:
    scored = {run: results.accuracy(run) for run in results.right}
    kept = {(score.method, score.budget): score for score in results.kept.scores}
    made = table_of_figures("method", "K", *next(iter(scored.values())), "retention", "95 %")
    for run, accuracies in scored.items():
        score = kept.get((run.method, run.budget))
        figures = (percent(one.value) for one in accuracies.values())
        made.add_row(run.method, str(run.budget), *figures, *(("", "") if score is None else _retention(score)))
    out().print(made)
    out().print(
        "[dim]percent right; blind: the model without an image; retention: the share of the gain over blind that is "
        "kept[/]"
    )


def _retention(score: Score) -> tuple[str, str]:
    """Retention and its interval, dimmed where the budget is not reached."""
    kept = percent(score.retention)
    if not score.reached:
        return f"[dim]{kept}[/]", f"[yellow]{score.standing}[/]"
    return f"[bold]{kept}[/]", interval(score.retention_interval)


def _print_captions(results: PhotoResults) -> None:
    from covist.eval.photos.words import WORD_CLASSES

    console = out()
    shown = WORD_CLASSES if console.width >= WIDE else ()
    made = table_of_figures("method", "K", "tokens", "nats/word", "retention", "95 %", *shown, "same")
    for score, by_class in results.rows():
        made.add_row(
            score.method,
            str(score.budget),
            f"{score.mean_tokens:.1f}".removesuffix(".0"),
            f"{results.nats_of(score):.3f}",
            *_retention(score),
            *(percent(by_class[name].retention) for name in shown),
            percent(score.same_answers),
        )
    console.print(made)
    console.print(
        f"[dim]blind, the model without an image: {results.blind_nats:.3f} nats/word; retention: the share of the "
        "gain over blind that is kept; same: captions of the model that compression does not change[/]"
    )
