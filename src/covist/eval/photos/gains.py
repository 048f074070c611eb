"""What seeing gains over the same model without an image, and how much of it compression keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from covist.errors import CovistError
from covist.eval.records import Records, Run
from covist.eval.results import Difference, Results, RunCost
from covist.eval.statistics import Tally
from covist.eval.suite import Item, Suite
from covist.eval.tables import by_budget, correction_note, retention_table, with_interval
from covist.eval.tally import answer_agreement
from covist.methods.grammar import VANILLA

BLIND = "blind"


@dataclass(frozen=True)
class Gains:
    """Finished runs over the same items, the uncompressed and the blind model among them."""

    suite: Suite
    items: Sequence[Item]
    runs: Sequence[Run]
    records: Records
    seed: int

    @cached_property
    def blind(self) -> Run:
        return self._run_of(BLIND)

    @cached_property
    def vanilla(self) -> Run:
        return self._run_of(VANILLA)

    def _run_of(self, method: str) -> Run:
        found = next((run for run in self.runs if run.method == method), None)
        if found is None:
            raise CovistError("retention needs the uncompressed and the blind model")
        return found

    @property
    def seeing(self) -> list[Run]:
        """The runs that are compared: all but the blind one."""
        return [run for run in self.runs if run != self.blind]

    @cached_property
    def _same(self) -> dict[Run, float]:
        reference = self.records.of(self.vanilla)
        return {run: answer_agreement(self.items, self.records.of(run), reference) for run in self.seeing}

    @cached_property
    def _costs(self) -> dict[Run, RunCost]:
        return {run: RunCost.of(run, [self.records.of(run)[item.number] for item in self.items]) for run in self.seeing}

    def results(self, name: str, tallies: dict[Run, Tally], questions: int) -> Results:
        """Results whose scores are gains, so that their retention is the share of the gain that is kept.

        tallies: of every seeing run, the sums of its gains over the blind model, and numbers of what was scored
        """
        return Results(
            suite=self.suite.name,
            families=(name,),
            images=len(self.items),
            unit=self.suite.unit,
            questions=questions,
            by_agreement=False,
            settings=dict(self.records.settings),
            tallies=tallies,
            same_answers=self._same,
            costs=self._costs,
            seed=self.seed,
            reference=next((run.method for run in self.seeing if run != self.vanilla), None),
        )


def kept_tables(results: Results, order: Sequence[str] = ()) -> list[str]:
    """Markdown: the share of the gain that is kept, and paired differences to the first method, by budget."""
    parts = ["## Retention", retention_table(results, order)]
    if results.differences:
        parts += [
            f"## Retention minus that of {results.differences[0].against}, paired",
            f"{correction_note(results)} An asterisk marks what is clear after correction.",
            by_budget({(one.method, one.budget): _marked(one) for one in results.differences}, order),
        ]
    return parts


def _marked(difference: Difference) -> str:
    found = with_interval(difference.retention, difference.interval, signed=True)
    return f"{found} *" if difference.is_clear_among_all else found
