"""A table of scores with your results beside the paper's figures, and the runs that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covist.budget import Count
from covist.errors import CovistError
from covist.methods.absent import Absent, absent_named
from covist.methods.grammar import parse_name
from covist.reproduce import paper
from covist.reproduce.paper import PaperRow, PaperTable
from covist.reproduce.results import Found, read_run
from covist.reproduce.retention import retention
from covist.reproduce.runs import CHECKPOINTS, COVIST, Job, LmmsRun, Settings, reference_run, run_of
from covist.reproduce.sheet import HERE, PAPER, ResultSheet, SheetLine, budget_text, figure_text, system_name, title
from covist.reproduce.suites import SUITE, suite_table
from covist.reproduce.systems import plain_name
from covist.reproduce.tasks import task_of
from covist.request.budgets import distinct_notes, reach
from covist.units import counted

_MMBENCH = (
    "MMBench: lmms-eval asks the OpenAI API (OPENAI_API_KEY) about answers without a clear letter, and guesses "
    "without a key; the task mmbench_en_dev_static needs none, and its score is read as well"
)
_AFTER = (
    "the paper counts the tokens after pruning; our budgets are the layer mean of the same schedule, "
    "except for methods that run their published counts"
)


@dataclass(frozen=True)
class Line:
    """A row of the paper, and your results for it."""

    row: PaperRow
    run: LmmsRun | None  # None for systems that covist does not have
    scores: Mapping[str, float | None]
    retention: float | None


@dataclass(frozen=True)
class Comparison:
    """A whole table. `problems` lists files that could not be used, `notes` what to know about the rows."""

    table: PaperTable
    settings: Settings
    tasks: tuple[str, ...]  # the columns that are run and read
    lines: tuple[Line, ...]
    found: Mapping[LmmsRun, Found]
    jobs: tuple[Job, ...]  # every run, the uncompressed model first, with the command for its missing results

    @property
    def problems(self) -> list[str]:
        return [problem for found in self.found.values() for problem in found.problems]

    @property
    def notes(self) -> list[str]:
        """Differences between the paper and the commands, and budgets that an image does not get exactly."""
        budgets = [reach(run.method, Count(run.budget), *run.shape) for run in self.found if run.budget]
        limit = self.settings.limit
        notes = [
            f"figures marked {HERE} are over the first {counted(limit, 'question')} of each task" if limit else None,
            CHECKPOINTS[self.table.model].note,
            _MMBENCH if "mmb" in self.tasks else None,
            _AFTER if self.table.name == "after" else None,
            *distinct_notes(budgets),
            *(str(part) for part in self._known_in_part),
        ]
        return [note for note in notes if note]

    @property
    def _known_in_part(self) -> list[Absent]:
        """Systems of which covist has only some of the paper's rows."""
        systems = dict.fromkeys(plain_name(line.row.system) for line in self.lines if line.run)
        return [absent for absent in map(absent_named, systems) if absent]

    def sheet(self) -> ResultSheet:
        """The lines of the paper, each followed by yours if there is a result."""
        headings = (*(task_of(task).heading for task in self.table.tasks), "R (%)")
        lines = tuple(made for line in self.lines for made in _sheet_lines(line, self.table))
        return ResultSheet(title(self.table), self.table.title, headings, lines, tuple(self.notes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the paper's figures are under `paper`, yours under `here`."""
        return {
            "table": self.table.name,
            "paper": {"title": paper.TITLE, "place": self.table.title, "caption": self.table.caption},
            "tasks": list(self.tasks),
            "limit": self.settings.limit,
            "rows": [_as_dict(line) for line in self.lines],
            "runs": [job.to_dict() for job in self.jobs],
            "problems": self.problems,
            "notes": self.notes,
        }


def compare(
    name: str,
    settings: Settings | None = None,
    methods: Sequence[str] | None = None,
    budgets: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
) -> Comparison:
    """A table of the paper beside the results in `settings.results`, in full or for some methods, budgets and tasks.

    >>> compare("main", methods=["covist-pro"], budgets=[64]).lines[-1].row.retention
    99.1
    """
    settings = settings or Settings()
    table = suite_table() if name == SUITE else paper.load_table(name)
    columns = _columns(table, tasks)
    rows = [(row, run) for row, run in _rows(table) if row.budget is None or _is_wanted(row, run, methods, budgets)]
    if not any(run for row, run in rows if row.budget):
        raise CovistError(f"table {name} has no row for these methods and budgets; it has {_choices(table)}")
    runs = dict.fromkeys([reference_run(table), *(run for _, run in rows if run)])
    found = {run: read_run(settings.folder(run), columns, settings.arguments(run), settings.limit) for run in runs}
    full = found[reference_run(table)].scores
    lines = tuple(_line(row, run, found[run].scores if run else {}, full) for row, run in rows)
    jobs = [*_exports(table, settings), *(_job(run, found[run], columns, settings) for run in runs)]
    return Comparison(table, settings, columns, lines, found, tuple(jobs))


def _exports(table: PaperTable, settings: Settings) -> list[Job]:
    """A bundled suite must be exported as a task before it can be run."""
    if table.suite is None:
        return []
    task = task_of(table.tasks[0]).runs
    folder = settings.task_folder(task)
    command = ("covist", "export", "--suite", table.suite, "--out", str(folder))
    return [Job(task, settings.results, () if (folder / f"{task}.yaml").is_file() else command)]


def _job(run: LmmsRun, found: Found, columns: Sequence[str], settings: Settings) -> Job:
    missing = [task for task in columns if task not in found.scores]
    return Job(run.folder, settings.folder(run), tuple(settings.command(run, missing)) if missing else ())


def _rows(table: PaperTable) -> list[tuple[PaperRow, LmmsRun | None]]:
    """Every row and its run. A table without the uncompressed model gets an empty row for it."""
    rows = list(table.rows)
    if not any(row.system == paper.VANILLA for row in rows):
        rows.insert(0, PaperRow(paper.VANILLA, None))
    return [(row, run_of(table, row)) for row in rows]


def _is_wanted(
    row: PaperRow, run: LmmsRun | None, methods: Sequence[str] | None, budgets: Sequence[int] | None
) -> bool:
    chosen = methods is None or (run is not None and not {run.method, parse_name(run.method).base}.isdisjoint(methods))
    return chosen and (budgets is None or row.budget in budgets)


def _columns(table: PaperTable, tasks: Sequence[str] | None) -> tuple[str, ...]:
    unknown = sorted(set(tasks or ()) - set(table.tasks))
    if unknown:
        raise CovistError(f"table {table.name} has no task {', '.join(unknown)}; it has {', '.join(table.tasks)}")
    return tuple(task for task in table.tasks if tasks is None or task in tasks)


def _choices(table: PaperTable) -> str:
    names = dict.fromkeys(run.method for row, run in _rows(table) if run and row.budget)
    return f"{', '.join(names)} at {', '.join(map(str, table.budgets))}"


def _line(
    row: PaperRow, run: LmmsRun | None, scores: Mapping[str, float | None], full: Mapping[str, float | None]
) -> Line:
    """A line with its retention over the tasks that both this run and the uncompressed one have finished."""
    return Line(row, run, scores, retention({task: scores[task] for task in scores if full.get(task)}, full))


def _sheet_lines(line: Line, table: PaperTable) -> list[SheetLine]:
    """The paper's line, and yours if there is a result."""
    row = line.row
    digits = 2 if table.name == "components" else 1  # of the retention
    found: list[tuple[str, Mapping[str, float | None], float | None]] = []
    found += [(PAPER, row.scores, row.retention)] if row.retention is not None else []
    found += [(HERE, line.scores, line.retention)] if line.scores else []
    made = []
    for origin, scores, mean in found:
        cells = [figure_text(scores.get(task), task_of(task).digits) for task in table.tasks]
        counted = len([task for task in table.tasks if scores.get(task) is not None])
        fewer = origin == HERE and mean is not None and counted < len(table.tasks)
        cells.append(figure_text(mean, digits) + (f" ({counted})" if fewer else ""))  # the mean is over fewer tasks
        ours = line.run is not None and line.run.method.startswith(COVIST)
        made.append(SheetLine(system_name(row), budget_text(row), origin, tuple(cells), str(row.budget), ours))
    return made


def _as_dict(line: Line) -> dict[str, Any]:
    row = line.row
    return {
        "system": row.system,
        "venue": row.venue,
        "budget": row.budget,
        "counting": row.counting,
        "run": line.run.folder if line.run else None,
        "paper": {"scores": dict(row.scores), "retention": row.retention},
        "here": {"scores": dict(line.scores), "retention": line.retention},
    }
