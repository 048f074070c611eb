"""The paper's efficiency table, with figures computed from the model's shape and measured by `covist bench`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covist.families.registry import geometry_named
from covist.plan import make_plan
from covist.reproduce import paper
from covist.reproduce.paper import PaperRow, PaperTable
from covist.reproduce.runs import STRATEGIES, Job, Settings
from covist.reproduce.sheet import COMPUTED, HERE, PAPER, ResultSheet, SheetLine, budget_text, figure_text, title
from covist.reproduce.systems import method_of
from covist.units import counted

TEXT = 61.63
"""Mean text tokens of the paper's POPE prompts. The paper does not state it; it follows from the size of its caches
(374.81 MiB at 0.5 MiB a token are 749.62 tokens, 688 of them visual), and reproduces its FLOPs to the last digit."""
PROMPTS, WARMUP, REPETITIONS = 100, 10, 3
ANSWER = 2
"""Tokens of an answer: 6.91 per second in 289.64 ms."""
FIGURES = {
    "mean_tokens": ("tokens", 0),
    "ttft_ms": ("TTFT", 2),
    "prefill_ms": ("prefill", 2),
    "generation_ms": ("answer", 2),
    "speedup": ("gain", 2),
    "tokens_per_second": ("tok/s", 2),
    "tflops": ("TFLOPs", 3),
    "peak_gib": ("peak", 3),
    "kv_mib": ("cache", 2),
}
"""Heading and digits of each column."""
_UNITS = (
    "tokens: layer mean, newlines included; TTFT, prefill and answer (generation) in ms; gain: speed-up of the answer; "
    "peak memory in GiB; cache in MiB"
)
_WORKLOAD = (
    "the paper times 100 POPE prompts on an A800; the command times a model of the same shape with random weights on "
    "this machine"
)


@dataclass(frozen=True)
class Efficiency:
    """Every row three times: the paper's figures, those computed from the shape, and those measured here."""

    table: PaperTable
    settings: Settings
    computed: tuple[Mapping[str, float], ...]
    measured: tuple[Mapping[str, float], ...]
    problems: list[str]

    @property
    def jobs(self) -> list[Job]:
        """One command measures all rows on this machine."""
        budgets = ",".join(map(str, self.table.budgets))
        command = (
            *("covist", "bench", "--geometry", self.table.model, "--scale", "1"),
            *("--methods", ",".join(STRATEGIES), "--budgets", budgets),
            *("--prompts", str(_prompts(self.settings)), "--warmup", str(WARMUP), "--repetitions", str(REPETITIONS)),
            *("--text", str(round(TEXT)), "--max-new-tokens", str(ANSWER), "--out", str(self.settings.results)),
        )
        return [Job("bench", self.settings.results, () if all(self.measured) else command)]

    @property
    def notes(self) -> list[str]:
        plan = f"covist plan --preset {self.table.model} --budget 160 --strategy pro --text {TEXT}"
        return [_UNITS, _WORKLOAD, f"the figures marked {COMPUTED} are those of `{plan}` and similar commands"]

    def sheet(self) -> ResultSheet:
        lines = []
        for row, computed, measured in zip(self.table.rows, self.computed, self.measured, strict=True):
            for origin, figures in ((PAPER, row.figures), (COMPUTED, computed), (HERE, measured)):
                lines += [_line(row, origin, figures)] if figures else []
        headings = tuple(heading for heading, _ in FIGURES.values())
        return ResultSheet(title(self.table), self.table.title, headings, tuple(lines), tuple(self.notes))

    def to_dict(self) -> dict[str, Any]:
        rows = zip(self.table.rows, self.computed, self.measured, strict=True)
        return {
            "table": self.table.name,
            "paper": {"title": paper.TITLE, "place": self.table.title, "caption": self.table.caption},
            "rows": [
                {
                    "system": row.system,
                    "budget": row.budget,
                    "paper": dict(row.figures),
                    "computed": dict(computed),
                    "here": dict(measured),
                }
                for row, computed, measured in rows
            ],
            "limit": self.settings.limit,
            "runs": [job.to_dict() for job in self.jobs],
            "problems": self.problems,
            "notes": self.notes,
        }


def efficiency(settings: Settings | None = None) -> Efficiency:
    """The efficiency table with computed figures, and with those measured in `settings.results`.

    >>> round(efficiency().computed[0]["tflops"], 3)
    43.408
    """
    settings = settings or Settings()
    table = paper.load_table(paper.EFFICIENCY)
    problems: list[str] = []
    bench = _read_bench(settings.results / "bench.json", settings, problems)
    computed = tuple(_computed(table, row) for row in table.rows)
    measured = tuple(_measured(bench.get((str(method_of(row.system)), str(row.budget)))) for row in table.rows)
    return Efficiency(table, settings, computed, measured, problems)


def _prompts(settings: Settings) -> int:
    return settings.limit or PROMPTS


def _computed(table: PaperTable, row: PaperRow) -> dict[str, float]:
    """FLOPs by Eq. 19, cache in fp16, and visual tokens including newlines, as the paper counts them."""
    shape = geometry_named(table.model)
    strategy = STRATEGIES.get(str(method_of(row.system)), "fixed")
    plan = make_plan(shape, row.budget or shape.tokens, strategy, text=TEXT)
    return {
        "mean_tokens": plan.schedule.mean + plan.markers,
        "tflops": plan.flops / 1e12,
        "kv_mib": plan.kv_bytes / 2**20,
    }


def _read_bench(path: Path, settings: Settings, problems: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows of `bench.json` by method and budget; a file that cannot be used is reported in `problems`."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = {(row["method"], str(row["budget"])): row for row in content["results"]}
        prompts, complete = content["protocol"]["prompts"], content["complete"]
    except (OSError, ValueError, KeyError, TypeError):
        problems.append(f"{path}: is not a complete file of covist bench")
        return {}
    if not complete or prompts != _prompts(settings):
        found = counted(prompts, "prompt") if complete else "an interrupted run"
        problems.append(f"{path}: holds {found}, not {counted(_prompts(settings), 'prompt')}")
        return {}
    return rows


def _measured(row: Mapping[str, Any] | None) -> dict[str, float]:
    """The paper's columns from a row of `bench.json`, without what the machine cannot measure."""
    if row is None:
        return {}
    means = {name: row[name] and row[name]["mean"] for name in ("ttft_ms", "prefill_ms", "generation_ms", "speedup")}
    found = {
        "mean_tokens": row["mean_tokens"] + row["markers"],
        **means,
        "tokens_per_second": row["tokens_per_second"],
        "tflops": row["flops"] / 1e12,
        "peak_gib": None if row["peak_mib"] is None else row["peak_mib"] / 1024,
        "kv_mib": row["kv_mib"],
    }
    return {name: value for name, value in found.items() if value is not None}


def _line(row: PaperRow, origin: str, figures: Mapping[str, float]) -> SheetLine:
    cells = tuple(figure_text(figures.get(key), digits) for key, (_, digits) in FIGURES.items())
    is_covist = row.system != paper.VANILLA
    return SheetLine(row.system, budget_text(row), origin, cells, block=row.system, is_covist=is_covist)
