"""A gate in front of a packed vision tower: only some patches enter, and features come back among those of all tokens.

A packed tower takes the patches of all images as rows, those of a token next to each other, and tells its blocks where
each image ends and how each patch is rotated. So any rows can be left out between the embedding of patches, which is
cheap, and the blocks, which are not.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from covist.contract.family import PatchRating
from covist.contract.signals import ImageSignals
from covist.families.hooks import Running
from covist.families.layouts import Views
from covist.families.pixels import ShownPixels
from covist.grid import Grid, PartialGrid


def packed_tower(base: nn.Module, blocks: Sequence[nn.Module]) -> Any | None:
    """The module whose `blocks` these are, if it takes rows of patches and merges those of a token afterwards."""
    for module in base.modules():
        own: Any = getattr(module, "blocks", None)
        if isinstance(own, nn.ModuleList) and len(own) and list(own) == list(blocks):
            told = inspect.signature(own[0].forward).parameters
            is_packed = "grid_thw" in inspect.signature(module.forward).parameters and _mergers(module)
            return module if is_packed and {"cu_seqlens", "position_embeddings"} <= set(told) else None
    return None


def _mergers(tower: nn.Module) -> list[nn.Module]:
    """The modules that make tokens of patches: the last one, and those of DeepStack."""
    named = [module for name, module in tower.named_children() if "merger" in name]
    return [one for module in named for one in (module if isinstance(module, nn.ModuleList) else [module])]


@dataclass(frozen=True)
class Passage:
    """Which tokens of one call of a tower are encoded."""

    kept: Tensor  # [tokens] bool, in the order of the tower
    patches: int  # of a token
    _cut: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by identity: what blocks are told, whole and cut

    @cached_property
    def rows(self) -> Tensor:
        """The patches that enter."""
        return self.kept.repeat_interleave(self.patches).nonzero()[:, 0]

    def told(self, name: str, value: Any) -> Any:
        """What a block is told about its rows, for those that enter; all blocks are told the same objects."""
        makers: dict[str, Callable[[Any], Any]] = {"cu_seqlens": self._ends, "position_embeddings": self._angles}
        if name not in makers or value is None:
            return value  # the largest length is an upper bound, which it still is
        if id(value) not in self._cut:
            self._cut[id(value)] = value, makers[name](value)
        return self._cut[id(value)][1]

    def _ends(self, whole: Tensor) -> Tensor:
        """Where images, frames or windows end among the rows that enter; one of which nothing enters is left out."""
        entered = pad(self.kept.cumsum(0), (1, 0)) * self.patches
        return entered[(whole // self.patches).long()].unique_consecutive().to(whole.dtype)

    def _angles(self, whole: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Cosines and sines."""
        return tuple(part[self.rows] for part in whole)

    def put_back(self, made: Tensor) -> Tensor:
        """Rows of the encoded tokens among rows of zeros for the others."""
        return made.new_zeros(len(self.kept), *made.shape[1:]).index_put((self.kept,), made)


class _Now(threading.local):
    """What the gate does in the running call of a thread."""

    def __init__(self) -> None:
        self.passage: Passage | None = None
        self.scores: list[Tensor] = []


class PatchGate:
    """Hooks that let a tower see only what `rate` rates above zero, while images are encoded for a prompt."""

    def __init__(self, tower: Any, running: Running, rate: PatchRating):
        self._tower, self._running, self._rate, self._now = tower, running, rate, _Now()
        self._hooks = [
            tower.register_forward_pre_hook(self._open, with_kwargs=True),
            tower.register_forward_hook(self._close, always_call=True),
            *(block.register_forward_pre_hook(self._enter, with_kwargs=True) for block in tower.blocks),
            *(merger.register_forward_hook(self._leave) for merger in _mergers(tower)),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def passed(self, views: Sequence[Views], embeddings: Tensor, pixels: ShownPixels | None) -> Gated | None:
        """What was let in of the images that were just encoded, given all of them; None if nobody was asked."""
        scores, self._now.scores = self._now.scores, []
        return Gated(views, embeddings, torch.cat(scores).to(embeddings.device), pixels) if scores else None

    def forget(self) -> None:
        """What an interrupted call has left."""
        self._now.scores = []

    @torch.no_grad()
    def _open(self, tower: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self._now.passage = None  # of a call that was interrupted
        if not self._running.calls:
            return
        pixels, grid = (*args, *(kwargs[name] for name in ("hidden_states", "grid_thw") if name in kwargs))[:2]
        scores = [self._rate(cells) for cells in _cells(pixels, grid, tower.config)]
        rated = [score.flatten() for score in scores if score is not None]
        if not rated:
            return
        self._now.scores += rated
        kept = torch.cat(rated) > 0
        if not bool(kept.all()):
            order = _order(tower, grid)
            self._now.passage = Passage(
                kept if order is None else kept[order.to(kept.device)], tower.config.spatial_merge_size**2
            )

    def _close(self, tower: Any, args: tuple, output: Any) -> None:
        self._now.passage = None

    def _enter(self, block: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        passage = self._now.passage
        if passage is None:
            return None
        hidden = args[0] if args else kwargs.pop("hidden_states")
        if block is self._tower.blocks[0]:
            hidden = hidden[passage.rows]
        return (hidden, *args[1:]), {name: passage.told(name, value) for name, value in kwargs.items()}

    def _leave(self, merger: Any, args: tuple, output: Any) -> Tensor | None:
        return None if self._now.passage is None else self._now.passage.put_back(output)


def _cells(pixels: Tensor, grid: Tensor, config: Any) -> Iterator[Tensor]:
    """The pixels of every token of each image, [frames, rows, columns, 3, values]."""
    merge, moments = config.spatial_merge_size, config.temporal_patch_size * config.patch_size**2
    shapes = [(frames, rows // merge, columns // merge) for frames, rows, columns in grid.tolist()]
    patches = pixels.split([frames * rows * columns * merge**2 for frames, rows, columns in shapes])
    for shape, own in zip(shapes, patches, strict=True):
        yield own.view(*shape, merge**2, -1, moments).transpose(3, 4).flatten(4)


def _order(tower: Any, grid: Tensor) -> Tensor | None:
    """Which token each row of the tower's blocks belongs to, if windows come one after another."""
    if not hasattr(tower, "window_size"):
        return None
    from transformers.vision_utils import get_vision_window_index  # only here: plans import this file too

    order: Tensor = get_vision_window_index(grid, tower.spatial_merge_size, tower.window_size, tower.patch_size)[0]
    return order


@dataclass(frozen=True)
class Gated:
    """The images of one call of an encoder, of which only the tokens with scores above zero were encoded."""

    views: Sequence[Views]  # of each image or video
    embeddings: Tensor  # [N, d], zeros for the others
    scores: Tensor  # [N]
    pixels: ShownPixels | None

    @property
    def kept(self) -> Tensor:
        return self.scores > 0

    @cached_property
    def kept_views(self) -> list[Views]:
        """The same with what was encoded of every view, as one row; the views themselves if that is all."""
        if bool(self.kept.all()):
            return list(self.views)
        counts = iter([int(part.sum()) for part in self.kept.split([rows * columns for rows, columns in self._every])])
        return [[(1, count) for count in islice(counts, len(views))] for views in self.views]

    @property
    def _every(self) -> Views:
        return [view for of_image in self.views for view in of_image]

    def whole(self, encoded: Iterable[ImageSignals], placed: Callable[[Tensor], Tensor]) -> Iterator[ImageSignals]:
        """Signals of the encoded tokens, at their places among all tokens of each image or segment."""
        views, token = iter(self._every), 0
        for image in encoded:
            own = tuple(islice(views, len(image.grid.views)))
            tokens = slice(token, token + sum(rows * columns for rows, columns in own))
            token, kept = tokens.stop, self.kept[tokens]
            grid = Grid(own, image.grid.relation)
            yield replace(
                image,
                grid=grid if bool(kept.all()) else PartialGrid.of(grid, kept.nonzero()[:, 0].tolist()),
                span=placed(self.embeddings[tokens]),
                content=kept,
                span_scores=self.scores[tokens],
                read_pixels=None if self.pixels is None else partial(self.pixels, tokens, own),
            )
