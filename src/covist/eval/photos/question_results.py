"""How many questions about photographs a model answers rightly, and how much of that is due to seeing them.

Retention is (right - right without an image) / (right without compression - right without an image), over all
questions. On yes-or-no questions guessing is right half of the time, which a plain ratio of accuracies would count as
kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covist.eval.photos.gains import Gains, kept_tables
from covist.eval.records import Records, Run
from covist.eval.results import Results
from covist.eval.statistics import Estimate, Tally, accuracy
from covist.eval.suite import Item, Suite
from covist.eval.tables import markdown_table, with_interval
from covist.eval.tally import tally
from covist.outputs import write_json, write_text

ALL = "all questions"


@dataclass(frozen=True)
class QuestionResults:
    """What `evaluate_photos` returns about a file of questions.

    kept: results whose scores are gains over the blind model, all questions together
    right: right answers by family of questions, by run; the uncompressed model's first, then the blind one's
    families: the families of questions
    """

    kept: Results
    right: dict[Run, Tally]
    families: tuple[str, ...]

    @classmethod
    def build(cls, suite: Suite, items: list[Item], runs: list[Run], records: Records, seed: int) -> QuestionResults:
        """Results of finished runs, the uncompressed and the blind model among them."""
        found = Gains(suite, items, runs, records, seed)
        right = {run: tally(items, records.of(run), suite.families) for run in (found.vanilla, found.blind)}
        right |= {run: tally(items, records.of(run), suite.families) for run in found.seeing if run not in right}
        blind = right[found.blind]
        gains = {run: _together(Tally(right[run].right - blind.right, blind.asked)) for run in found.seeing}
        return cls(found.results(ALL, gains, int(blind.asked.sum())), right, suite.families)

    @property
    def about(self) -> str:
        return self.kept.about

    @property
    def images(self) -> int:
        return self.kept.images

    @property
    def notes(self) -> list[str]:
        return self.kept.notes

    def accuracy(self, run: Run) -> dict[str, Estimate]:
        """Percent right with 95 % intervals over images: of all questions, and by family."""
        own = self.right[run]
        parts = {ALL: _together(own)}
        if len(self.families) > 1:
            columns = enumerate(self.families)
            parts |= {name: Tally(own.right[:, [at]], own.asked[:, [at]]) for at, name in columns}
        return {name: accuracy(part, self.kept.seed) for name, part in parts.items()}

    @property
    def gain(self) -> Estimate:
        """What seeing gains without compression, in percentage points over all questions."""
        vanilla = self.kept.scores[0]
        return Estimate(vanilla.accuracy, vanilla.accuracy_interval)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        whole = self.kept.to_dict()
        kept = {(row["method"], row["budget"]): row for row in whole["results"]}
        named = (
            "mean_tokens",
            "counted_tokens",
            "reached",
            "nominal",
            "retention",
            "same_answers",
            "seconds_per_image",
        )
        rows = []
        for run in self.right:
            own = kept.get((run.method, run.budget.written), {})
            rows.append(
                {
                    "method": run.method,
                    "budget": run.budget.written,
                    "accuracy": {name: _estimate_dict(one) for name, one in self.accuracy(run).items()},
                    **{name: own.get(name) for name in named},
                    "ci": own["ci"]["retention"] if own else None,
                }
            )
        about = ("suite", "images", "questions", "settings", "differences", "versions")
        return {**{name: whole[name] for name in about}, "gain_of_seeing": _estimate_dict(self.gain), "results": rows}

    def to_markdown(self) -> str:
        """Accuracy of every run, then retention and paired differences by method and budget."""
        parts = [
            f"# Suite photos: {self.about}",
            "Accuracy in percent; brackets hold 95% bootstrap intervals over images. Retention is the share, in "
            f"percent, of the gain of seeing that compression keeps: {with_interval(*self.gain)} points over the model "
            "without an image.",
            "## Accuracy",
            self._accuracy_table(),
            *kept_tables(self.kept),
        ]
        return "\n\n".join(parts) + "\n"

    def _accuracy_table(self) -> str:
        scored = {run: self.accuracy(run) for run in self.right}
        rows = [
            [run.method, str(run.budget), *(with_interval(*one) for one in own.values())] for run, own in scored.items()
        ]
        return markdown_table(["method", "budget", *next(iter(scored.values()))], rows)

    def write(self, directory: str | Path) -> None:
        """Write results.json and results.md."""
        folder = Path(directory)
        write_json(folder / "results.json", self.to_dict())
        write_text(folder / "results.md", self.to_markdown())


def _together(own: Tally) -> Tally:
    """All families as one."""
    return Tally(*(part.sum(1, keepdims=True) for part in (own.right, own.asked)))


def _estimate_dict(estimate: Estimate) -> dict[str, Any]:
    return {"percent": round(estimate.value, 2), "ci": [round(end, 2) for end in estimate.interval]}
