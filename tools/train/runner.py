"""The training loop of every stage: phases by share of the time, a progress bar, a log, and checkpoints."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from covist.errors import CovistError
from train import parallel
from train.optim import Optimiser

LONGEST_STEP = 20.0  # seconds; a longer one means that the process was paused
CHECKPOINT_SECONDS, REPORT_SECONDS = 90.0, 120.0

Step = Callable[..., tuple[Tensor, dict[str, float]]]  # of a phase and the number of the step


class Budget:
    """How much of a stage is used up, in minutes of training or, for exact repeats, in steps."""

    def __init__(self, minutes: float | None = None, steps: int | None = None):
        if (minutes is None) == (steps is None):
            raise CovistError("give a training budget either in minutes or in steps")
        self.limit = minutes * 60 if minutes is not None else float(steps or 0)
        self.in_steps = steps is not None
        self.used = 0.0

    def advance(self, seconds: float) -> None:
        self.used += 1 if self.in_steps else min(seconds, LONGEST_STEP)

    @property
    def fraction(self) -> float:
        return min(1.0, self.used / self.limit) if self.limit else 1.0


def phase_at(phases: tuple, fraction: float) -> Any:
    """The phase at a used fraction of the budget."""
    total, end = sum(phase.share for phase in phases), 0.0
    for phase in phases:
        end += phase.share / total
        if fraction < end:
            return phase
    return phases[-1]


class Every:
    """Returns True if called when the seconds have passed since it last did."""

    def __init__(self, seconds: float):
        self.seconds, self.last = seconds, time.monotonic()

    def __call__(self) -> bool:
        due = time.monotonic() - self.last > self.seconds
        if due:
            self.last = time.monotonic()
        return due


class Averages:
    """Exponential averages of the figures that steps report."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.values[name] = 0.95 * self.values.get(name, value) + 0.05 * value

    def __str__(self) -> str:
        return " ".join(f"{name} {value:.3g}" for name, value in self.values.items())


class Stage:
    """A part of the training: what is trained, for how long, and where checkpoints and log are written."""

    def __init__(self, name: str, optimiser: Optimiser, parts: dict[str, nn.Module], budget: Budget, out: Path):
        self.name, self.optimiser, self.parts, self.budget = name, optimiser, parts, budget
        self.checkpoint, self.log = out / f"{name}.pt", out / "log.txt"
        if self.checkpoint.exists():
            state = restore(self.checkpoint, parts)
            optimiser.load_state_dict(state["optimiser"])
            budget.used = state["used"]

    def save(self) -> None:
        if parallel.rank() > 0:
            return
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        draft = self.checkpoint.with_suffix(".draft")
        torch.save({"parts": parts, "optimiser": self.optimiser.state_dict(), "used": self.budget.used}, draft)
        draft.replace(self.checkpoint)  # never leaves an incomplete checkpoint

    def report(self, phase: str, figures: str) -> None:
        line = f"{self.name} {phase} {self.budget.fraction:.1%} step {self.optimiser.steps} {figures}"
        with self.log.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def run(self, phases: tuple, step: Step, validate: Callable[[], str] | None = None) -> list[float]:
        """Train until the budget is used up; returns the losses of the steps made in this call.

        `step(phase, number)` draws its data from the number alone, so a resumed run continues as if never stopped.
        """
        losses: list[float] = []
        save_due, report_due = Every(CHECKPOINT_SECONDS), Every(REPORT_SECONDS)
        averages, phase = Averages(), None
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[loss]}")
        with Progress(*columns) as bar:
            task = bar.add_task(self.name, total=1.0, loss="")
            try:
                while self.budget.fraction < 1:
                    if (current := phase_at(phases, self.budget.fraction)) is not phase:
                        phase, averages = current, Averages()
                        bar.update(task, description=f"{self.name}: {phase.name}")
                    loss, figures = self._step(step, phase)
                    losses.append(loss)
                    averages.add(figures)
                    bar.update(task, completed=self.budget.fraction, loss=f"loss {loss:.3f}")
                    if report_due() and parallel.rank() == 0:
                        self.report(phase.name, f"{averages} | {validate() if validate else ''}")
                    if save_due():
                        self.save()
            finally:
                self.save()
        return losses

    def _step(self, step: Step, phase: object) -> tuple[float, dict[str, float]]:
        began = time.monotonic()
        loss, figures = step(phase, self.optimiser.steps * parallel.processes() + parallel.rank())
        loss.backward()
        seconds = parallel.average(self.optimiser.parameters, time.monotonic() - began)
        self.optimiser.step(self.budget.fraction)
        self.budget.advance(seconds)
        return float(loss.detach()), figures


def restore(path: Path, parts: dict[str, nn.Module]) -> dict:
    """Load the parts of a checkpoint and return the rest of it."""
    state = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state["parts"][name])
    return state
