"""How much of what a model sees in photographs compression keeps.

The gain of seeing is how much less surprising a word is than to the same model without an image, in nats. Retention is
the gain with compression / the gain without, over all words or those of one class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from covist.errors import CovistError
from covist.eval.photos.gains import BLIND, Gains, kept_tables
from covist.eval.photos.words import ALL, WORD_CLASSES, word_class, words_of
from covist.eval.records import ItemAnswers, Records, Run
from covist.eval.results import Results, Score
from covist.eval.statistics import Interval, Tally
from covist.eval.suite import Item, Suite
from covist.eval.tables import markdown_table, with_interval
from covist.outputs import write_json, write_text
from covist.units import counted


@dataclass(frozen=True)
class PhotoResults:
    """What `evaluate_photos` returns.

    of: results over all words and by word class; their retention is the share of the gain of seeing that is kept, and
        their `same_answers` the share of images about which the model writes the same caption as without compression
    nats: the mean loss of a word, by run; the blind model's too
    words: how many words were scored, by class
    """

    of: dict[str, Results]
    nats: dict[Run, float]
    words: dict[str, int]

    @classmethod
    def build(cls, suite: Suite, items: list[Item], runs: list[Run], records: Records, seed: int) -> PhotoResults:
        """Results of finished runs, the uncompressed and the blind model among them."""
        found = Gains(suite, items, runs, records, seed)
        losses = {run: [_losses(item, records.of(run)[item.number]) for item in items] for run in runs}
        blind, seen = losses[found.blind], losses[found.vanilla]
        of = {
            name: found.results(
                name,
                {run: _gains(losses[run], blind, name) for run in found.seeing},
                sum(map(len, items_words(seen, name))),
            )
            for name in (ALL, *WORD_CLASSES)
        }
        nats = {run: float(np.mean(np.concatenate(items_words(own, ALL)))) for run, own in losses.items()}
        return cls(of, nats, {name: results.questions for name, results in of.items()})

    @property
    def about(self) -> str:
        """`5,531 words about 100 images`."""
        return f"{counted(self.words[ALL], 'word')} about {counted(self.images, 'image')}"

    @property
    def images(self) -> int:
        return self.of[ALL].images

    @property
    def notes(self) -> list[str]:
        """What to know about budgets that images did not get exactly, one line each."""
        return self.of[ALL].notes

    def rows(self) -> list[tuple[Score, dict[str, Score]]]:
        """The score over all words, and those by word class, of every run."""
        by_class = {name: self.of[name].scores for name in WORD_CLASSES}
        return [
            (score, {name: scores[place] for name, scores in by_class.items()})
            for place, score in enumerate(self.of[ALL].scores)
        ]

    def nats_of(self, score: Score) -> float:
        return self.nats[Run(score.method, score.budget)]

    @property
    def blind_nats(self) -> float:
        return next(nats for run, nats in self.nats.items() if run.method == BLIND)

    def gain(self, name: str) -> tuple[float, Interval]:
        """What seeing gains without compression, in nats per word of a class, with its 95% interval."""
        vanilla = self.of[name].scores[0]
        low, high = vanilla.accuracy_interval
        return vanilla.accuracy / 100, (low / 100, high / 100)  # scores are in percent

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None for what cannot be computed."""
        whole = self.of[ALL].to_dict()
        by_class = {name: results.to_dict()["results"] for name, results in self.of.items()}
        rows = [
            {
                **{
                    name: row[name]
                    for name in ("method", "budget", "mean_tokens", "counted_tokens", "reached", "nominal")
                },
                "nats_per_word": round(self.nats_of(score), 4),
                "retention": {name: own[place]["retention"] for name, own in by_class.items()},
                "ci": {name: own[place]["ci"]["retention"] for name, own in by_class.items()},
                "same_captions": row["same_answers"],
                "seconds_per_image": row["seconds_per_image"],
            }
            for place, (row, score) in enumerate(zip(whole["results"], self.of[ALL].scores, strict=True))
        ]
        named = ("suite", "images", "settings", "differences", "versions")
        about = {
            "words": self.words,
            "blind_nats_per_word": round(self.blind_nats, 4),
            "gain_of_seeing": {name: _gain_dict(*self.gain(name)) for name in self.of},
            "results": rows,
        }
        return {**{name: whole[name] for name in named}, **about}

    def to_markdown(self) -> str:
        """Retention and paired differences by method and budget, then losses and word classes of every run."""
        results, order = self.of[ALL], self._best_first()
        parts = [
            f"# Suite photos: {self.about}",
            "Retention is the share, in percent, of the gain of seeing that compression keeps, measured in nats per "
            f"word of captions that people wrote: {self.blind_nats:.3f} for the model without an image. Brackets hold "
            "95% bootstrap intervals over images.",
            "Without compression, seeing gains "
            + ", ".join(f"{_in_nats(*self.gain(name))} for {name}" for name in self.of)
            + " (nats per word).",
            *kept_tables(results, order),
            "## Every run",
            self._run_table(),
        ]
        return "\n\n".join(parts) + "\n"

    def _best_first(self) -> list[str]:
        """The methods by their mean retention, those with more budgets before those with fewer."""
        kept: dict[str, list[float]] = {}
        for score in self.of[ALL].scores:
            kept.setdefault(score.method, []).append(score.retention)
        return sorted(kept, key=lambda method: (len(kept[method]), mean(kept[method])), reverse=True)

    def _run_table(self) -> str:
        head = ["method", "budget", "mean tokens", "nats per word", *WORD_CLASSES, "same captions"]
        rows = [
            [
                score.method,
                str(score.budget) if score.reached else f"{score.budget}, {score.standing}",
                f"{score.mean_tokens:.1f}",
                f"{self.nats_of(score):.3f}",
                *(with_interval(one.retention, one.retention_interval) for one in by_class.values()),
                f"{score.same_answers:.1f}",
            ]
            for score, by_class in self.rows()
        ]
        return markdown_table(head, rows)

    def write(self, directory: str | Path) -> None:
        """Write results.json and results.md."""
        folder = Path(directory)
        write_json(folder / "results.json", self.to_dict())
        write_text(folder / "results.md", self.to_markdown())


def _in_nats(value: float, interval: Interval) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def _gain_dict(value: float, interval: Interval) -> dict[str, Any]:
    ends = (round(end, 4) if math.isfinite(end) else None for end in interval)
    return {"nats_per_word": round(value, 4) if math.isfinite(value) else None, "ci": list(ends)}


Losses = dict[str, list[float]]
"""The losses of an image's words, by word class, and of all of them."""


def _losses(item: Item, answered: ItemAnswers) -> Losses:
    if answered.losses is None:
        raise CovistError("these answers were stored without losses: evaluate them again in another directory")
    made: Losses = {}
    captions = [question.answers[0] for question in item.questions if question.answers]
    for caption, losses in zip(captions, answered.losses, strict=True):
        for word, loss in zip(words_of(caption), losses, strict=True):
            if loss is not None:
                for name in (ALL, word_class(word.text)):
                    made.setdefault(name, []).append(loss)
    return made


def items_words(losses: Sequence[Losses], name: str) -> list[list[float]]:
    """The losses of a class of words, by image."""
    return [own.get(name, []) for own in losses]


def _gains(seeing: Sequence[Losses], blind: Sequence[Losses], name: str) -> Tally:
    """Sums of the gain of seeing, and numbers of words; both [images, 1]."""
    own, without = items_words(seeing, name), items_words(blind, name)
    gains = [sum(there) - sum(here) for here, there in zip(own, without, strict=True)]
    return Tally(np.array(gains)[:, None], np.array(list(map(len, own)), dtype=float)[:, None])
