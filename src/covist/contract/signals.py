"""The vision tower's signals of one image, in the order of its content tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead, Tower
from covist.devices import to_device
from covist.errors import CovistError
from covist.formulas.concentration import ConcentrationTracker
from covist.grid import Grid, PartialGrid


@dataclass(frozen=True)
class EncoderLayer:
    """Class-token queries and keys [tiles, width] and patch keys [tiles, patches, width] of one encoder layer."""

    class_query: Tensor
    class_key: Tensor
    keys: Tensor
    heads: int

    def attention(self) -> Tensor:
        """Class-token attention per head [tiles, heads, patches], normalised over the patches only."""
        return self.logits().softmax(-1)

    def logits(self) -> Tensor:
        """The same before the softmax."""
        return self._logits(self.keys)

    def class_row(self) -> Tensor:
        """The same as in the encoder: attention of the class token to itself counts too, so a head sums to below 1."""
        logits = torch.cat([self._logits(self.class_key[:, None]), self.logits()], dim=-1)
        return logits.softmax(-1)[..., 1:]

    def _logits(self, keys: Tensor) -> Tensor:
        """Logits of the class token over keys [tiles, n, width] -> [tiles, heads, n]."""
        query = self.class_query.float().unflatten(-1, (self.heads, -1))[..., None]  # [tiles, heads, head width, 1]
        keys = keys.float().unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return (keys @ query).squeeze(-1) * query.shape[-2] ** -0.5


@dataclass
class KnownPrompt:
    """A prompt that an image has come with."""

    tokens: Tensor  # [n] ids, or [n, d] embeddings if only they are known
    seen: int  # its length when it last came, with the tokens generated since


@dataclass(eq=False)
class ImageSignals:
    """Encoder signals of one image.

    `N` counts content tokens, numbered in grid order; `n` counts every token of the image span in the prompt, so
    `n > N` if a family inserts markers (newlines). Tensors that only some methods read are callables, evaluated once
    and on demand. docs/extending.md lists what a method reads, with shapes and dtypes.

    >>> class MostAttended(covist.Method):
    ...     name = "most-attended"
    ...     def select(self, image, count):
    ...         signals: covist.ImageSignals = image.signals
    ...         return signals.packed(signals.attention.mean(1)).topk(count).indices
    """

    grid: Grid
    span: Tensor  # [n, d] the image's embeddings exactly as the prompt receives them
    content: Tensor  # [n] bool, False for markers; on the host, or reading it makes the host wait
    read_attention: Callable[[], Tensor]  # -> [tiles, heads, patches], normalised over the patches of a tile
    read_keys: Callable[[], Tensor]  # -> [N, k] descriptors before any rotary
    read_hidden: Callable[[], Tensor]  # -> [N, v] encoder features that feed the projector
    pack: Tensor  # [N] index of each content token in the flattened (tiles, patches)
    project: Callable[[Tensor], Tensor]  # encoder features [*, v] -> decoder embeddings [*, d]
    order: Tensor | None = None  # [N] index among the span's content tokens, if the prompt shows tile after tile
    continues: bool = False  # whether this is a further segment of the preceding video
    uniform: bool = False  # whether attention is uniform, because the encoder's cannot be read
    class_features: Tensor | None = None  # [tiles, v] class-token features; None without a class token
    text_space: Callable[[Tensor], Tensor] | None = None  # encoder features [*, v] -> input of CLIP's visual projection
    feeding: EncoderLayer | None = None  # the encoder layer that feeds the projector; None without a class token
    layers: dict[int, EncoderLayer] = field(default_factory=dict)  # further encoder layers that a method requested
    requested: dict[EncoderRead, Callable[[], list[Tensor]]] = field(default_factory=dict)
    """What else the running method requested, [N, ...] each; see `read`."""
    tower: Tower | None = None  # the encoder itself, if a method requested its entry and it has a class token
    span_scores: Tensor | None = None
    """[n] what `Method.rate_patches` said of every token of the span, if it was asked: the vision tower has seen those
    above zero, and only they are content."""
    companions: dict[int, Tensor] = field(default_factory=dict)
    """Decoder layer -> features [N, d] that are added to the content tokens before that layer, in addition to the
    embeddings with which they enter the decoder (DeepStack)."""
    owner: Tensor | None = None
    """If these are the representatives of a state that was made before the prompt: the token that represents each, [N].
    Tokens that represent none, not even themselves, are places without content, which never enter the decoder."""
    read_pixels: Callable[[], list[Tensor]] | None = None  # -> [3, h, w] per view, as the encoder saw it
    references: WeakKeyDictionary[ConcentrationTracker, float | None] = field(default_factory=WeakKeyDictionary)
    """The concentration reference that this image met first, for every tracker that has counted it. A forward call
    without a cache meets the same image at every step: its reference must not move, and it must count once."""
    prompts: list[KnownPrompt] = field(default_factory=list)  # with which it has come
    joins: dict[tuple[int, ...], ImageSignals] = field(default_factory=dict)
    """Images that begin with this tile, by the identities of their tiles; `PlacedSignals.joined` writes and reads it.
    Held here and not by the family, because an image refers to its tiles: both go together."""

    @cached_property
    def attention(self) -> Tensor:
        """Per-head attention [tiles, heads, patches]: of the class token, or received attention if there is none."""
        return self.read_attention().float()

    @cached_property
    def keys(self) -> Tensor:
        """Descriptors [N, k]."""
        return self.read_keys().float()

    @cached_property
    def hidden(self) -> Tensor:
        """Encoder features [N, v]."""
        return self.read_hidden()

    @cached_property
    def content_rows(self) -> Tensor:
        """The place of each content token in the span, [N], on the host."""
        rows = self.content.cpu().nonzero()[:, 0]
        return rows if self.order is None else rows[self.order.cpu()]

    @cached_property
    def embeddings(self) -> Tensor:
        """Projected embeddings of the content tokens [N, d]."""
        return self.of_content(self.span)

    def of_content(self, per_token: Tensor) -> Tensor:
        """Values of the content tokens [N, ...], from those of all tokens of the span [n, ...]."""
        if self.order is None and len(self.content_rows) == len(self.content):
            return per_token
        return per_token[to_device(self.content_rows, per_token.device)]

    @cached_property
    def unseen(self) -> Tensor | None:
        """[n] bool: tokens of the span whose patches did not enter the vision tower; None if all did."""
        left_out = None if self.span_scores is None else self.span_scores <= 0
        return left_out if left_out is not None and bool(left_out.any()) else None

    @property
    def patch_scores(self) -> Tensor:
        """What `Method.rate_patches` said of the content tokens, [N]."""
        if self.span_scores is None:
            raise CovistError(
                "this image was encoded whole, without the method that chooses its patches; encode it in a call that "
                "runs this method"
            )
        return self.span_scores[self.content_rows]

    def read(self, request: EncoderRead) -> list[Tensor]:
        """What a method requested from the encoder (`Method.encoder_requests`), in the order of the content tokens."""
        if request not in self.requested:
            raise CovistError(
                f"this image was encoded without recording the {request.what} that the method reads from the encoder; "
                "encode it in a call that runs this method"
            )
        return self.requested[request]()

    @property
    def modality(self) -> Literal["image", "video"]:
        return "video" if self.grid.relation == "frames" else "image"

    def packed(self, per_patch: Tensor) -> Tensor:
        """Values per tile and patch [tiles, patches] in content order [N]."""
        return per_patch.flatten()[self.pack]

    def restricted(self, visible: Tensor) -> ImageSignals:
        """The signals of the content tokens `visible` [N] bool, on the host; the others no longer count as content."""
        shown = visible.nonzero()[:, 0]
        rows, kept = self.content_rows[shown], shown.to(self.pack.device)
        return replace(
            self,
            grid=PartialGrid.of(self.grid, shown.tolist()),
            content=torch.zeros(len(self.content), dtype=torch.bool).index_fill_(0, rows, True),
            order=None if self.order is None else rows.argsort().argsort(),
            read_attention=lambda: self.attention,
            read_keys=lambda: self.keys[kept],
            read_hidden=lambda: self.hidden[kept],
            pack=self.pack[kept],
            requested={
                request: lambda read=read: [tensor[kept] for tensor in read()]  # type: ignore[misc]
                for request, read in self.requested.items()
            },
            companions={layer: features[kept] for layer, features in self.companions.items()},
        )

    @classmethod
    def join(
        cls,
        tiles: Sequence[ImageSignals],
        grid: Grid,
        order: Tensor | None = None,
        read_pixels: Callable[[], list[Tensor]] | None = None,
    ) -> ImageSignals:
        """One image, from tiles that the encoder saw separately; tiles have no class token and are of one size.

        `grid` is the layout of their tokens. `order` [N] gives for each token of the grid its index counted tile by
        tile, and `read_pixels` gives the views; without them every tile is a view.
        """

        def joined(per_tile: Sequence[Tensor]) -> Tensor:
            tokens = torch.cat(list(per_tile))
            return tokens if order is None else tokens[order]

        def tile_pixels() -> list[Tensor]:
            return [view for tile in tiles if tile.read_pixels is not None for view in tile.read_pixels()]

        return replace(
            tiles[0],
            grid=grid,
            span=torch.cat([tile.span for tile in tiles]),
            content=torch.cat([tile.content for tile in tiles]),
            order=order,
            read_attention=lambda: torch.cat([tile.attention for tile in tiles]),
            read_keys=lambda: joined([tile.keys for tile in tiles]),
            read_hidden=lambda: joined([tile.hidden for tile in tiles]),
            pack=joined([tile.pack + number * len(tile.pack) for number, tile in enumerate(tiles)]),
            requested={
                request: lambda request=request: [  # type: ignore[misc]
                    joined(parts) for parts in zip(*(tile.read(request) for tile in tiles), strict=True)
                ]
                for request in tiles[0].requested
            },
            companions={layer: joined([tile.companions[layer] for tile in tiles]) for layer in tiles[0].companions},
            read_pixels=read_pixels or tile_pixels,
            references=WeakKeyDictionary(),
            prompts=[],
            joins={},
        )


@dataclass(frozen=True, eq=False)
class PlacedSignals:
    """Signals and their place in a prompt.

    Rows from `start` to `end` that are not in `rows` are text within the image, such as a mark between two tiles or
    the time of a frame: like markers, they stay in every layer, and they are not part of the instruction.
    """

    signals: ImageSignals
    rows: Tensor  # [n] prompt rows of the span, increasing, on the host
    start: int
    end: int

    @classmethod
    def after(cls, before: Sequence[PlacedSignals], signals: ImageSignals, rows: Tensor) -> PlacedSignals:
        """Place signals after those `before` them; a segment of a video begins where the preceding one ends."""
        first, last = rows[[0, -1]].tolist()
        return cls(signals, rows, before[-1].end if signals.continues and before else first, last + 1)

    def joined(self, others: Sequence[PlacedSignals], make: Callable[[], ImageSignals]) -> PlacedSignals:
        """This image and those that follow it as one image, which `make` builds once for all prompts."""
        parts = (self, *others)
        known, key = self.signals.joins, tuple(id(part.signals) for part in parts)
        if key not in known:
            known[key] = make()
        return PlacedSignals(known[key], torch.cat([part.rows for part in parts]), self.start, parts[-1].end)
