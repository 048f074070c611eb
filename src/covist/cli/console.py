"""Printing: tables for people on stdout, JSON for programs on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

ACCENT = "cyan"
INTERRUPTED = 130  # exit code


class ReaderGone(Exception):
    """The reader of our output has closed it, as `head` does."""


class _Output(Console):
    def on_broken_pipe(self) -> None:
        raise ReaderGone


def out() -> Console:
    return _Output(highlight=False)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def print_json(payload: Any) -> None:
    try:
        sys.stdout.write(json.dumps(payload, indent=2, allow_nan=False, default=str) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def discard_unwritten() -> None:
    """Drop what was printed but cannot be written: Python would try again at its end, and complain in many lines."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Wishes:
    """What the user wants to see."""

    quiet = False


_wishes = _Wishes()


def be_quiet(wanted: bool) -> bool:
    """Set for the command that runs now: no progress and no notes."""
    _wishes.quiet = wanted
    return wanted


def print_line(text: str) -> None:
    """Print rich markup to stderr: wrapped between words in a terminal, one line in a file."""
    console = err()
    console.print(text, soft_wrap=not console.is_terminal)


def say(text: str) -> None:
    """Print rich markup to stderr, unless the user wants to see nothing but answers and errors."""
    if not _wishes.quiet:
        print_line(text)


def note(text: str) -> None:
    say(f"[yellow]note:[/] {escape(text)}")


def print_notes(notes: Sequence[str]) -> None:
    for text in notes:
        note(text)


def table(*columns: str) -> Table:
    """The common table style: first column left-aligned and never wrapped, numbers right-aligned."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number else "left", no_wrap=not number, overflow="fold")
    return made


def table_of_figures(*columns: str) -> Table:
    """A table of methods, whose names can be long: in a narrow terminal names are wrapped, never numbers."""
    made = table(*columns)
    for number, column in enumerate(made.columns):
        column.no_wrap = number > 0
    return made


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each", style="dim")


Advance = Callable[[int, int, str], None]
"""Called with the number of finished steps, the number of all steps, and the name of the current one."""


@contextmanager
def progress(rates: bool = False) -> Iterator[Advance]:
    """Show progress on stderr: in a terminal a bar that disappears at the end, elsewhere a line now and then.

    rates: also give the rate and the remaining time in the lines
    """
    console = err()
    if _wishes.quiet:
        yield lambda done, total, name: None
        return
    if not console.is_terminal:
        yield _Lines(rates)
        return
    with Progress(*_columns(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield _Bar(bar, task)


def _columns() -> tuple[ProgressColumn, ...]:
    """In a narrow terminal the words are wrapped, never the numbers."""
    whole = Column(no_wrap=True)
    return (
        TextColumn("{task.description}", table_column=Column()),
        BarColumn(bar_width=None),
        MofNCompleteColumn(table_column=whole.copy()),
        _Rate(table_column=whole.copy()),
        TimeRemainingColumn(compact=True, table_column=whole.copy()),
    )


class _Bar:
    """Progress in a terminal; what an earlier run finished does not count towards the rate."""

    def __init__(self, bar: Progress, task: TaskID):
        self._bar, self._task, self._begun = bar, task, False

    def __call__(self, done: int, total: int, name: str) -> None:
        if not self._begun:
            self._bar.reset(self._task, completed=done, total=total)
            self._begun = True
        self._bar.update(self._task, completed=done, total=total, description=name)


class _Lines:
    """Progress for a log file: the first step, then at most one line in `EVERY` seconds."""

    EVERY = 20.0

    def __init__(self, rates: bool = False) -> None:
        self._rates = rates
        self._started = perf_counter()
        self._printed = -math.inf
        self._first: tuple[int, float] | None = None  # steps done and time, at the first call

    def __call__(self, done: int, total: int, name: str) -> None:
        now = perf_counter()
        self._first = self._first or (done, now)
        if done < total and now - self._printed >= self.EVERY:
            self._printed = now
            spent = f"{now - self._started:.0f} s, {self._rate(done, total, now, *self._first)}"
            print(f"covist: {done} of {total}, {spent}{name}", file=sys.stderr, flush=True)

    def _rate(self, done: int, total: int, now: float, first: int, began: float) -> str:
        """Steps per second since the first call, and the remaining time at that rate."""
        if not self._rates or done == first:
            return ""
        rate = (done - first) / (now - began)
        return f"{rate:.2g}/s, {(total - done) / rate:.0f} s left, "
