"""Reports outside any model: evenly spread tokens, random weights and maps."""

from __future__ import annotations

import torch

from covist.grid import Grid
from covist.report.stages import ImageReport, StageReport

SQUARE, WIDE, TALL = Grid(((6, 6),)), Grid(((3, 9),)), Grid(((25, 7),))
TILED, TALL_TILES = Grid(((6, 6), (4, 12))), Grid(((6, 6), (18, 5)))
CAPTION = "bright: unlike the question\n(negative sign, as published)"


def stage(depth: int, kept, assignment=None, **fields) -> StageReport:
    """A stage with unit weights, from plain lists."""
    tokens = torch.as_tensor(kept)
    given = {"positions": tokens, "weights": torch.ones(len(tokens)), "withheld": 0.0, "maps": {}, **fields}
    return StageReport(
        depth=depth, kept=tokens, assignment=None if assignment is None else torch.as_tensor(assignment), **given
    )


def image_report(grid: Grid, counts: tuple[int, ...], composed: bool = True) -> ImageReport:
    """Every stage keeps evenly spread tokens and has random weights and, if it composes, random maps."""
    random = torch.Generator().manual_seed(0)
    stages, before = [], torch.arange(grid.size)
    for number, count in enumerate(counts):
        places = torch.linspace(0, len(before) - 1, count).round().long()
        names = ("attention", "distinctiveness", "instruction", "combined") if number == 0 else ("combined",)
        made = stage(
            2 * number,
            before[places],
            (before[:, None] - before[places]).abs().argmin(1) if composed else None,
            weights=1 + 7 * torch.rand(count, generator=random),
            maps={name: torch.rand(len(before), generator=random) for name in names} if composed else {},
            captions=dict.fromkeys(names, CAPTION),
        )
        stages.append(made)
        before = before[places]
    per_layer = tuple(count for count in counts for _ in range(2))
    return ImageReport(0, grid, grid.size, 0, counts[0], per_layer, per_layer, tuple(stages))
