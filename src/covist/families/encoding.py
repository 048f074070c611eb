"""Signals of the images of one call of an encoder, of any class: where tokens lie, and what their patches showed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isqrt
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRequest
from covist.contract.family import Removable, RequestedNow
from covist.contract.signals import ImageSignals
from covist.families.hooks import Running
from covist.families.incoming import choose_query_patches, choose_query_patches_in_rows
from covist.families.layouts import Views
from covist.families.patch_attention import PatchAttention
from covist.families.pixels import ShownPixels
from covist.families.reads import Placing, ReadableTower, ReadTaps, RecordedReads
from covist.families.video import segments
from covist.grid import Grid

CLASS_TOKENS = 8
"""Most class and register tokens before the patches of an image."""


def encoder_layers(base: nn.Module, decoder: set[int]) -> list[list[Any]]:
    """The layers of each vision tower of a model, those of the deepest tower first; `decoder`: its modules' ids."""
    towers = [
        list(module)
        for name, module in base.named_modules()
        if isinstance(module, nn.ModuleList)
        and id(module) not in decoder
        and "audio" not in name
        and len(module)
        and all(attentions(layer) for layer in module)
    ]
    inner = {id(part) for tower in towers for layer in tower for part in layer.modules() if part is not layer}
    return sorted((tower for tower in towers if id(tower[0]) not in inner), key=len, reverse=True)


def attentions(layer: nn.Module) -> list[Any]:
    """The modules of a layer that may call transformers' attention interface."""
    return [part for part in layer.modules() if "Attention" in type(part).__name__ and hasattr(part, "config")]


class _LayerTaps:
    """Taps of all attention modules of a layer, of which one calls the interface."""

    def __init__(self, layer: Any, is_requested: Callable[[], bool]):
        # imported here, because plans import the family modules too and do not need transformers
        from covist.families._tower_reader import TowerTap

        self.taps = [TowerTap(module, is_requested) for module in attentions(layer)]
        self.handles: list[Removable] = [handle for tap in self.taps for handle in tap.handles]

    def take(self) -> list[PatchAttention]:
        return next(filter(None, [tap.take() for tap in self.taps]), [])


class TowerTaps:
    """Hooks at the layer of each tower that gives the evidence, and at whatever methods request of the deepest one."""

    def __init__(
        self,
        towers: Sequence[Sequence[Any]],
        feeding: int,
        global_layers: Sequence[int],
        requests: Sequence[EncoderRequest],
        requested_now: RequestedNow | None,
        running: Running,
    ):
        """`feeding`: the hidden state that feeds the projector; `global_layers`: see `ReadableTower`."""
        self._running, self._made = running, list[_LayerTaps]()
        # hidden state 0 is the embedding, hidden state i the output of layer i - 1
        feeds = [max(0, feeding % (len(layers) + 1) - 1) for layers in towers]
        self.feeding = [layers[feed] for layers, feed in zip(towers, feeds, strict=True)]
        self._evidence = [
            self._tap(layers[max(global_layers, default=feed)]) for layers, feed in zip(towers, feeds, strict=True)
        ]
        self.handles = [handle for taps in self._evidence for handle in taps.handles]
        self._reads: ReadTaps | None = None
        if towers:
            tower = ReadableTower(towers[0], feeds[0], self._tap, global_layers=global_layers)
            self._reads = ReadTaps(tower, requests, requested_now)
            self.handles += self._reads.handles

    def _tap(self, layer: Any, is_requested: Callable[[], bool] | None = None) -> _LayerTaps:
        """A tap that keeps something only while images are encoded."""
        running = self._running
        self._made.append(_LayerTaps(layer, lambda: running.calls > 0 and (is_requested is None or is_requested())))
        return self._made[-1]

    def begin(self) -> Removable:
        """Let the towers show their attention to the taps. It is the last step: only its handle can undo it."""
        from covist.families._tower_reader import AttentionReader

        return AttentionReader([tap for made in self._made for tap in made.taps])

    def take(self) -> tuple[list[list[PatchAttention]], RecordedReads]:
        """What a layer of each tower computed, entry by entry, and what was requested besides."""
        return [taps.take() for taps in self._evidence], {} if self._reads is None else self._reads.take()


class Folded(Protocol):
    """How patches became tokens; `folding.Folding` finds it out."""

    embeddings: Tensor  # [N, d]

    @property
    def class_is_last(self) -> bool: ...
    @property
    def projector(self) -> Callable[[Tensor], Tensor] | None: ...
    @property
    def features(self) -> Tensor: ...
    def patches_of(self, count: int) -> Tensor | None: ...


@dataclass
class Encoding:
    """The images, or the videos, of one call of an encoder."""

    views: Sequence[Views]  # of each image or video
    folding: Folded
    towers: Sequence[list[PatchAttention]]  # what a layer of each tower computed
    recorded: RecordedReads
    place: Callable[[Tensor], Tensor]  # embeddings as the projector makes them -> as the prompt receives them
    pixels: ShownPixels | None = None
    is_video: bool = False
    exact: bool = False  # whether all patches are query patches, however many they are

    def signals(self) -> Iterator[ImageSignals]:
        """Signals of every image, or of every segment of every video."""
        token = view = 0
        for views in self.views:
            parts = (
                segments(len(views), max(rows * columns for rows, columns in views))
                if self.is_video
                else [range(len(views))]
            )
            for part in parts:
                own = views[part.start : part.stop]
                tokens = slice(token, token + sum(rows * columns for rows, columns in own))
                signals = self._embedded(own, tokens, continues=part.start > 0)
                yield signals if self._attended is None else self._seen(signals, tokens, view, len(own))
                token, view = tokens.stop, view + len(own)

    def _embedded(self, views: Views, tokens: slice, continues: bool) -> ImageSignals:
        """Signals of some tokens without a tower: uniform attention, and embeddings where features are not known."""
        embeddings, count, place = self.folding.embeddings[tokens], tokens.stop - tokens.start, self.place
        span, features, project = place(embeddings), embeddings, place
        if (projector := self.folding.projector) is not None:
            features, project = self.folding.features[tokens], lambda features: place(projector(features))
        return ImageSignals(
            grid=Grid(tuple(views), "frames" if self.is_video else "aligned"),
            span=span,
            content=torch.ones(count, dtype=torch.bool),
            read_attention=lambda: torch.full((1, 1, count), 1 / count, device=span.device),
            read_keys=lambda: embeddings,
            read_hidden=lambda: features,
            pack=torch.arange(count, device=span.device),
            project=project,
            continues=continues,
            uniform=True,
            read_pixels=None if self.pixels is None else partial(self.pixels, tokens, tuple(views)),
        )

    @cached_property
    def _attended(self) -> _Attended | None:
        """What a tower computed, if it saw every view as a whole and its patches are known to be those of tokens."""
        sizes = [rows * columns for views in self.views for rows, columns in views]
        for entries in self._with_and_without_padding():
            if len(entries) != len(sizes):
                continue
            lengths = [len(entry.keys) for entry in entries]
            count = min(length // size for length, size in zip(lengths, sizes, strict=True))
            extra = {length - count * size for length, size in zip(lengths, sizes, strict=True)}
            others_allowed = 0 if any(entry.shown is not None for entry in entries) else CLASS_TOKENS
            fits = count and len(extra) == 1 and max(extra) <= others_allowed
            patches = self.folding.patches_of(count) if fits else None
            if patches is not None:
                (others,) = extra
                shown = slice(0, -others) if others and self.folding.class_is_last else slice(others, None)
                return _Attended([entry.of(shown) for entry in entries], others, shown, patches)
        return None

    def _with_and_without_padding(self) -> Iterator[list[PatchAttention]]:
        """Some encoders make tokens of padding, too, others only of what is shown."""
        for entries in self.towers:
            yield entries
            if any(entry.shown is not None for entry in entries):
                yield [entry.without_padding() for entry in entries]

    def _seen(self, signals: ImageSignals, tokens: slice, view: int, views: int) -> ImageSignals:
        """Signals with the evidence of the tower, for tokens whose `views` views begin at number `view`."""
        attended, shapes, exact = self._attended, signals.grid.views, self.exact
        assert attended is not None, "there is evidence"
        count, in_rows = attended.patches.shape[1], attended.in_rows
        fold = attended.patches[tokens] - tokens.start * count  # [n, patches of a token]
        entries = attended.entries[view : view + views]

        # What signals refer to outlives the encoding: not `self`, which holds everything between tower and prompt.
        def query_patches(shape: tuple[int, int] = shapes[0]) -> list[Tensor]:
            side, patches = isqrt(count), shape[0] * shape[1] * count
            if in_rows:
                return choose_query_patches_in_rows(patches, shape[1] * side, exact, fold.device)
            return choose_query_patches(patches, side, exact, fold.device)

        placing = Placing(
            query_patches,
            masses=lambda per_patch: per_patch.flatten()[fold].sum(1),
            means=lambda per_patch: per_patch.flatten(0, 1)[fold].float().mean(1),
            states=lambda per_patch: per_patch.flatten(0, 1)[fold].flatten(1),
        )

        def attention() -> Tensor:
            incoming = [entry.incoming(query_patches(shape)) for entry, shape in zip(entries, shapes, strict=True)]
            masses = placing.masses(torch.cat([one / one.sum() for one in incoming]))  # [n]
            return masses.view(len(shapes), 1, -1) if len(set(shapes)) == 1 else masses.view(1, 1, -1) / len(shapes)

        return replace(
            signals,
            uniform=False,
            read_attention=attention,
            read_keys=lambda: placing.means(torch.cat([entry.keys.flatten(1) for entry in entries])[None]),
            requested=placing.reads(attended.cut(self.recorded, view, views)),
        )


@dataclass(frozen=True)
class _Attended:
    """What the feeding layer of a tower computed, one entry for every view, without class tokens."""

    entries: list[PatchAttention]
    others: int  # class and register tokens of an entry
    shown: slice  # its patches
    patches: Tensor  # [N, patches of a token]

    @property
    def in_rows(self) -> bool:
        """Whether patches lie row by row over a view, not token by token."""
        count = self.patches.shape[1]
        return count == 1 or bool((self.patches[0].diff() != 1).any())

    def cut(self, recorded: RecordedReads, view: int, views: int) -> RecordedReads:
        """What methods requested, for some views."""
        lengths = [len(entry.keys) + self.others for entry in self.entries]
        first, last = sum(lengths[:view]), sum(lengths[: view + views])

        def of_states(states: Tensor) -> Tensor | None:
            rows = states.reshape(-1, states.shape[-1])
            return rows[first:last].unflatten(0, (views, -1))[:, self.shown] if len(rows) == sum(lengths) else None

        def of_views(raw: list[Any]) -> list[Any]:
            if raw and isinstance(raw[0], PatchAttention):
                if len(raw) != len(lengths):
                    return []
                whole = zip(raw[view : view + views], lengths[view : view + views], strict=True)
                cut = [one if len(one.keys) == length else one.without_padding() for one, length in whole]
                return [entry.of(self.shown) for entry in cut]
            states = [of_states(one) for one in raw]
            return states if all(one is not None for one in states) else []

        return {read: found for read, raw in recorded.items() if (found := of_views(raw))}
