"""What every method keeps of one image, in groups by their criterion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from PIL import Image

import covist
from covist import tiny
from covist.contract.kinds import CRITERIA
from covist.methods.catalogue import describe
from covist.report.stages import ImageReport
from covist.viz.layout import seen_views
from covist.viz.panels import show_image
from covist.viz.sheet import Sheet
from covist.viz.theme import Theme
from plates.images import Still
from plates.plate import BOLD, EDGE, GAP, TEXT, WIDTH, Representatives, explain

BUDGET = 128  # methods that act inside the decoder can reach it
COLUMNS = 4
SIDE = (WIDTH - 2 * EDGE - (COLUMNS - 1) * GAP) / COLUMNS
HEADING, TITLE = 0.36, 0.26  # inches above a group, above a row
Groups = Mapping[str, Sequence[str]]


@torch.inference_mode()
def kept_by(methods: Sequence[str], still: Still) -> dict[str, ImageReport]:
    """What each method makes of an image on the embedded model."""
    model, processor, clip = tiny.load()
    inputs = processor(images=still.image, text=tiny.prompt_for(still.question), return_tensors="pt")
    reports = {}
    for method in methods:
        with covist.compress(model, processor, method=method, budget=BUDGET, clip=clip) as handle:
            model(**inputs)
        reports[method] = handle.report.images[0]
    return reports


def by_what_decides(methods: Sequence[str], where: Sequence[str]) -> Groups:
    """What decides -> the methods that act in one of these places and have this criterion."""
    entries = [entry for entry in map(describe, methods) if entry["where"] in where]
    groups = {word: [entry["name"] for entry in entries if entry["criterion"] == word] for word in CRITERIA}
    return {word: names for word, names in groups.items() if names}


def packed(sizes: Sequence[int]) -> list[int]:
    """The first cell of each group, row by row: a group shares a row with the one before only if all of it fits.

    >>> packed([6, 2, 3])
    [0, 6, 8]
    """
    starts, cell = [], 0
    for size in sizes:
        used = cell % COLUMNS
        cell += COLUMNS - used if used and used + size > COLUMNS else 0
        starts.append(cell)
        cell += size
    return starts


class _Places:
    """Where panels and headings stand, in inches from the top left."""

    def __init__(self, groups: Groups):
        sizes = [len(names) for names in groups.values()]
        self.starts = packed(sizes)
        self._headed = {start // COLUMNS for start in self.starts}
        rows = 1 + (self.starts[-1] + sizes[-1] - 1) // COLUMNS
        self.height = self._top(rows) + EDGE

    def _top(self, row: int) -> float:
        """Of a row, its heading included; the image stands above all."""
        return EDGE + SIDE + row * (TITLE + SIDE) + HEADING * sum(headed < row for headed in self._headed)

    def heading(self, start: int) -> tuple[float, float]:
        return EDGE + start % COLUMNS * (SIDE + GAP), self._top(start // COLUMNS) + HEADING - 0.1

    def panel(self, cell: int) -> tuple[float, float]:
        row, column = divmod(cell, COLUMNS)
        above = TITLE + HEADING * (row in self._headed)
        return EDGE + column * (SIDE + GAP), self._top(row) + above


def draw(still: Still, reports: Mapping[str, ImageReport], groups: Groups, theme: Theme) -> Figure:
    """The image and the legend, then what the methods of each group keep."""
    places = _Places(groups)
    sheet = Sheet(places.height, theme=theme, width=WIDTH)
    (view,) = seen_views(next(iter(reports.values())), still.image)
    show_image(sheet.axes(EDGE, EDGE, SIDE, SIDE), view, theme=theme)
    lines = (
        f"asked: {still.question}",
        f"{BUDGET} of 576 tokens per layer; beside each name, the tokens that are left at the end",
    )
    explain(sheet, EDGE, EDGE + SIDE + 2 * GAP, still.caption, lines)
    for start, (word, names) in zip(places.starts, groups.items(), strict=True):
        left, top = places.heading(start)
        sheet.write(word, top, left, fontsize=BOLD, weight="bold")
        if len(names) > 1:  # a single panel is too narrow for more than the word
            sheet.write(CRITERIA[word], top, left + 0.12 + 0.09 * len(word), fontsize=TEXT, color=theme.soft)
        for cell, name in enumerate(names, start):
            _show(sheet, *places.panel(cell), name, reports[name], still.image)
    return sheet.figure


def _show(sheet: Sheet, left: float, top: float, name: str, report: ImageReport, image: Image.Image) -> None:
    """One method at its last stage, with its name and how many tokens it keeps."""
    (view,) = seen_views(report, image)
    Representatives(report, sheet).show(view, left, top, SIDE)
    ours = {"weight": "bold"} if name.startswith("covist") else {}
    sheet.write(name, top - TITLE / 2, left, fontsize=TEXT, **ours)
    kept = str(len(report.kept))
    sheet.write(kept, top - TITLE / 2, left + SIDE, fontsize=TEXT, color=sheet.theme.soft, ha="right")
