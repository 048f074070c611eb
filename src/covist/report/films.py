"""Reports of whole videos, joined from the reports of their segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from covist.grid import Grid, PartialGrid
from covist.report.stages import ImageReport, StageReport


def whole_videos(reports: Sequence[ImageReport]) -> tuple[ImageReport, ...]:
    """The same reports, with the segments of each video joined."""
    groups: list[list[ImageReport]] = []
    for report in reports:
        if report.continues and groups:
            groups[-1].append(report)
        else:
            groups.append([report])
    return tuple(map(joined, groups))


def joined(parts: Sequence[ImageReport]) -> ImageReport:
    """The report of a whole video, from those of its consecutive segments."""
    first = parts[0]
    if len(parts) == 1:
        return first
    readers = [part.read_pixels for part in parts if part.read_pixels is not None]
    return ImageReport(
        sample=first.sample,
        grid=_grid([part.grid for part in parts]),
        tokens=sum(part.tokens for part in parts),
        markers=sum(part.markers for part in parts),
        budget=sum(part.budget for part in parts),
        tokens_per_layer=_sums([part.tokens_per_layer for part in parts]),
        cached_tokens_per_layer=_sums([part.cached_tokens_per_layer for part in parts]),
        stages=tuple(_stage(parts, depth) for depth in sorted({step.depth for part in parts for step in part.stages})),
        read_pixels=(lambda: [view for read in readers for view in read()]) if len(readers) == len(parts) else None,
        preprocessing=first.preprocessing,
        segments=tuple(part.frames for part in parts),
        missed=_mean([(part.missed, part.tokens) for part in parts]),
        uniform=any(part.uniform for part in parts),
        encoded=sum(part.encoded_tokens for part in parts) if any(part.encoded is not None for part in parts) else None,
    )


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    """The mean of (value, weight); None unless all have a value."""
    known = [(value, weight) for value, weight in weighted if value is not None]
    return sum(value * weight for value, weight in known) / sum(w for _, w in known) if known == [*weighted] else None


def _sums(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Tokens of all segments, layer by layer."""
    return tuple(map(sum, zip(*counts, strict=True)))


def _grid(grids: Sequence[Grid]) -> Grid:
    """All frames, without the masked tokens of each segment."""
    wholes = [grid.whole if isinstance(grid, PartialGrid) else grid for grid in grids]
    whole = Grid(tuple(view for grid in wholes for view in grid.views), wholes[0].relation)
    if not any(isinstance(grid, PartialGrid) for grid in grids):
        return whole
    starts = accumulate((grid.size for grid in wholes), initial=0)
    left = (grid.cells if isinstance(grid, PartialGrid) else range(grid.size) for grid in grids)
    return PartialGrid.of(whole, [start + cell for start, cells in zip(starts, left, strict=False) for cell in cells])


def _stage(parts: Sequence[ImageReport], depth: int) -> StageReport:
    """The stage of a whole video that begins at a depth."""
    stages = [_stage_of(part, depth) for part in parts]
    places = accumulate((len(stage.kept) for stage in stages), initial=0)
    tokens = accumulate((part.tokens for part in parts), initial=0)
    assignments = [stage.assignment for stage in stages if stage.assignment is not None]
    covered = [stage.covered for stage in stages if stage.covered is not None]
    names = dict.fromkeys(name for stage in stages for name in stage.maps)
    return StageReport(
        depth=depth,
        withheld=sum(stage.withheld * len(stage.kept) for stage in stages) / sum(len(stage.kept) for stage in stages),
        kept=torch.cat([stage.kept + start for stage, start in zip(stages, tokens, strict=False)]),
        positions=torch.cat([stage.positions for stage in stages]),
        weights=torch.cat([stage.weights for stage in stages]),
        assignment=torch.cat([among + start for among, start in zip(assignments, places, strict=False)])
        if len(assignments) == len(stages)
        else None,
        maps={name: torch.cat([_map(name, stage) for stage in stages]) for name in names},
        captions={name: text for stage in stages for name, text in stage.captions.items()},
        coverage=_mean([(stage.coverage, part.tokens) for stage, part in zip(stages, parts, strict=True)]),
        covered=torch.cat(covered) if len(covered) == len(stages) else None,
    )


def _stage_of(part: ImageReport, depth: int) -> StageReport:
    """The stage of a segment that begins at a depth; if none does, a stage in which nothing changes."""
    place = max(place for place, stage in enumerate(part.stages) if stage.depth <= depth)
    stage = part.stages[place]
    starts = stage.depth == depth
    if starts and (stage.assignment is not None or len(stage.kept) < len(part.tokens_before(place))):
        return stage
    return StageReport(
        depth=depth,
        withheld=stage.withheld,
        kept=stage.kept,
        positions=stage.positions,
        weights=stage.weights,
        assignment=torch.arange(len(stage.kept)),
        maps=stage.maps if starts else {},
        captions=stage.captions,
        coverage=stage.coverage,
        covered=stage.covered if starts else None,
    )


def _map(name: str, stage: StageReport) -> Tensor:
    """An evidence map of a segment over the tokens that its stage chose from; nan if the segment has no such map."""
    return stage.maps[name] if name in stage.maps else torch.full((len(stage.kept),), torch.nan)
