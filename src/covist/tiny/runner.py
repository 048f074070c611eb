"""One loop for every stage: phases by share of the time, a progress bar, a log, and checkpoints to resume from."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from covist.tiny.optim import Optimiser

LONGEST_STEP = 20.0  # seconds; a longer one means that the process was paused
CHECKPOINT_SECONDS, REPORT_SECONDS = 90.0, 120.0


class Budget:
    """How much of a stage is used up, in minutes of training or, for exact repeats, in steps."""

    def __init__(self, minutes: float | None = None, steps: int | None = None):
        if (minutes is None) == (steps is None):
            raise ValueError("a budget is given either in minutes or in steps")
        self.limit = minutes * 60 if minutes is not None else float(steps or 0)
        self.in_steps = steps is not None
        self.used = 0.0

    def advance(self, seconds: float) -> None:
        self.used += 1 if self.in_steps else min(seconds, LONGEST_STEP)

    @property
    def fraction(self) -> float:
        return min(1.0, self.used / self.limit) if self.limit else 1.0


def phase_at(phases: tuple, fraction: float):
    """The phase that the used fraction of the budget falls into."""
    total, end = sum(phase.share for phase in phases), 0.0
    for phase in phases:
        end += phase.share / total
        if fraction < end:
            return phase
    return phases[-1]


class Averages:
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.values[name] = 0.95 * self.values.get(name, value) + 0.05 * value

    def __str__(self) -> str:
        return " ".join(f"{name} {value:.3g}" for name, value in self.values.items())


def run_stage(
    name: str,
    phases: tuple,
    step: Callable[..., tuple[Tensor, dict[str, float]]],
    optimiser: Optimiser,
    parts: dict[str, torch.nn.Module],
    budget: Budget,
    out: Path,
    validate: Callable[[], str] | None = None,
) -> list[float]:
    """Train until the budget is used up; returns the losses of the steps made in this call.

    `step(phase, number)` must draw its data from its number alone, so that a resumed run goes on as if never stopped.
    """
    checkpoint, log = out / f"{name}.pt", out / "log.txt"
    if checkpoint.exists():
        _resume(checkpoint, optimiser, parts, budget)
    losses: list[float] = []
    saved = reported = time.monotonic()
    averages, phase = Averages(), None
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[figures]}"))
    with Progress(*columns) as bar:
        task = bar.add_task(name, total=1.0, figures="")
        while budget.fraction < 1:
            if (now_phase := phase_at(phases, budget.fraction)) is not phase:
                phase, averages = now_phase, Averages()
                bar.update(task, description=f"{name}: {phase.name}")
            began = time.monotonic()
            loss, figures = step(phase, optimiser.steps)
            loss.backward()
            optimiser.step(budget.fraction)
            losses.append(float(loss.detach()))
            budget.advance(time.monotonic() - began)
            averages.add(figures)
            bar.update(task, completed=budget.fraction, figures=f"loss {losses[-1]:.3f}")
            if time.monotonic() - reported > REPORT_SECONDS:
                line = f"{name} {phase.name} {budget.fraction:.1%} step {optimiser.steps} {averages}"
                _write(log, line + (f" | {validate()}" if validate else ""))
                reported = time.monotonic()
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                _save(checkpoint, optimiser, parts, budget)
                saved = time.monotonic()
    _save(checkpoint, optimiser, parts, budget)
    return losses


def _write(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(f"{time.strftime('%H:%M:%S')} {line}\n")


def _save(path: Path, optimiser: Optimiser, parts: dict[str, torch.nn.Module], budget: Budget) -> None:
    state = {name: part.state_dict() for name, part in parts.items()}
    draft = path.with_suffix(".draft")
    torch.save({"parts": state, "optimiser": optimiser.state_dict(), "used": budget.used}, draft)
    draft.replace(path)  # never leaves half a checkpoint behind


def _resume(path: Path, optimiser: Optimiser, parts: dict[str, torch.nn.Module], budget: Budget) -> None:
    state = restore(path, parts)
    optimiser.load_state_dict(state["optimiser"])
    budget.used = state["used"]


def restore(path: Path, parts: dict[str, torch.nn.Module]) -> dict:
    """Load the parts of a checkpoint and return the rest of it."""
    state = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state["parts"][name])
    return state
