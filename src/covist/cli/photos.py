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
    from covist.eval.photos import PhotoResults

PHOTOS = "photos"
WIDE = 116  # columns of a terminal that has room for the word classes


def photos_of(data: str | None, metric: MetricName, model: str | None) -> Suite:
    """The suite of captioned photographs in a folder."""
    from covist.eval.photos import photo_suite

    if data is None:
        raise CovistError("--suite photos needs --data FOLDER, with captions.txt (image,caption) and images")
    if model is None:
        raise CovistError("--suite photos needs --model: the embedded models know no photographs")
    if metric is not MetricName.auto:
        raise CovistError("--suite photos has its own measure; omit --metric")
    return photo_suite(data)


def print_photos(results: PhotoResults, destination: Path | None) -> None:
    from covist.eval.photos.words import WORD_CLASSES

    console = out()
    console.print(f"\n[bold]photos[/]: {results.about}")
    shown = WORD_CLASSES if console.width >= WIDE else ()
    made = table_of_figures("method", "K", "tokens", "nats/word", "retention", "95 %", *shown, "same")
    for score, by_class in results.rows():
        made.add_row(
            score.method,
            str(score.budget),
            f"{score.mean_tokens:.1f}".removesuffix(".0"),
            f"{results.nats_of(score):.3f}",
            f"[bold]{percent(score.retention)}[/]" if score.reached else f"[dim]{percent(score.retention)}[/]",
            interval(score.retention_interval) if score.reached else f"[yellow]{score.standing}[/]",
            *(percent(by_class[name].retention) for name in shown),
            percent(score.same_answers),
        )
    console.print(made)
    console.print(
        f"[dim]blind, the model without an image: {results.blind_nats:.3f} nats/word; retention: the share of the "
        "gain over blind that is kept; same: captions of the model that compression does not change[/]"
    )
    if destination is not None:
        console.print(f"answers and tables in [bold]{escape(str(destination))}[/]")
