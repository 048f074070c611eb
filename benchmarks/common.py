"""Timing within one run: the variants take turns, so that a busy machine slows all of them equally."""

from __future__ import annotations

import gc
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    gc.collect()
    started = perf_counter()
    run()
    return perf_counter() - started


def interleaved(variants: dict[str, Callable[[], object]], repetitions: int = 5) -> dict[str, float]:
    """Median seconds of each variant over `repetitions` rounds, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    with torch.inference_mode():
        for _round in range(repetitions + 1):
            for name, run in variants.items():
                seconds[name].append(timed(run))
    return {name: median(times[1:]) for name, times in seconds.items()}


def verdict(name: str, value: float, limit: float | None, at_least: bool = False) -> str:
    """One line: the figure and, if it has a limit, the limit and whether it was reached."""
    line = f"{name:<58} {value:7.3f}"
    if limit is None:
        return line
    reached = value >= limit if at_least else value <= limit
    return f"{line}   {'>=' if at_least else '<='} {limit:<5}  {'reached' if reached else 'MISSED'}"
