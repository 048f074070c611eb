"""How much of images a number of tokens covers, and how many tokens `auto` keeps of them. Nothing is answered.

PYTHONPATH=benchmarks python -m studies.coverage --model FOLDER --budgets 33%,11%,auto charts photographs
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import covist
from covist.errors import CovistError
from covist.eval.photos.tower import remembered_tower
from covist.eval.tables import markdown_table
from covist.request.decoding import generate
from covist.request.images import load_image
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel, load_model
from covist.units import counted

PROMPT = "Describe the photo."  # methods that measure coverage without the question do not read it


@dataclass(frozen=True)
class Coverage:
    """What a budget keeps of the images of a folder, one figure per image."""

    folder: str
    budget: str
    tokens: np.ndarray  # kept
    covered: np.ndarray  # in percent

    @property
    def row(self) -> list[str]:
        spread = "{:.0f} [{:.0f}, {:.0f}]"
        figures = (spread.format(one.mean(), *np.percentile(one, (10, 90))) for one in (self.tokens, self.covered))
        return [f"{self.folder}, {counted(len(self.tokens), 'image')}", self.budget, *figures]


def coverage_of(
    loaded: LoadedModel, folder: Path, budgets: Sequence[str], method: str = "covist-max", limit: int | None = None
) -> list[Coverage]:
    """One entry per budget, over the first images of a folder by name."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())[:limit]
    measured = np.array([_measure(loaded, path, budgets, method) for path in paths])  # [images, budgets, 2]
    return [
        Coverage(folder.name, budget, measured[:, place, 0], 100 * measured[:, place, 1])
        for place, budget in enumerate(budgets)
    ]


def _measure(loaded: LoadedModel, path: Path, budgets: Sequence[str], method: str) -> list[tuple[int, float]]:
    """Kept tokens and coverage at each budget."""
    request, found = prepare(loaded, [load_image(path)], PROMPT), []
    with remembered_tower(loaded.model):
        for budget in budgets:
            with covist.compress(loaded.model, loaded.processor, method=method, budget=budget) as handle:
                generate(loaded.model, request.inputs(loaded.model), max_new_tokens=1)
                report = handle.report
            certificate = None if report is None else report.images[0].certificate
            if certificate is None:
                raise CovistError(f"{method} does not measure coverage; CoViST's own methods do")
            found.append((certificate.kept, certificate.coverage))
    return found


def table(found: Sequence[Coverage]) -> str:
    """Markdown: means, and the tenths of the images with least and most in brackets."""
    return markdown_table(["images", "budget", "tokens", "covered, %"], [one.row for one in found])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.coverage", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of images")
    parser.add_argument("--model", default="tiny", help="a name or a folder")
    parser.add_argument("--method", default="covist-max", help="one that measures coverage")
    parser.add_argument("--budgets", default="33%,22%,11%,6%,3%,auto", help="with commas between them")
    parser.add_argument("--limit", type=int, help="images of each folder, the first ones")
    options = parser.parse_args(arguments)
    loaded, budgets = load_model(options.model), options.budgets.split(",")
    found = [coverage_of(loaded, folder, budgets, options.method, options.limit) for folder in options.folders]
    print(table([one for part in found for one in part]))


if __name__ == "__main__":
    main()
