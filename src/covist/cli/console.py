"""Printing: tables for people on stdout, JSON for programs on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

ACCENT = "cyan"


def out() -> Console:
    return Console(highlight=False)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def print_json(payload: Any) -> None:
    sys.stdout.write(json.dumps(payload, indent=2, allow_nan=False, default=str) + "\n")


def note(text: str) -> None:
    err().print(f"[yellow]note:[/] {escape(text)}", soft_wrap=True)


def table(*columns: str) -> Table:
    """The one table style: first column left and never broken, numbers to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number else "left", no_wrap=not number, overflow="fold")
    return made


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each", style="dim")


def progress() -> Progress:
    """A bar with rate and remaining time, on stderr, gone when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(compact=True),
        console=err(),
        transient=True,
    )


def percent(value: float, signed: bool = False) -> str:
    """One decimal; a dash where there is no number."""
    return f"{value:{'+' if signed else ''}.1f}" if math.isfinite(value) else "-"


def interval(ends: tuple[float, float], signed: bool = False) -> str:
    return " to ".join(percent(end, signed) for end in ends)
