"""Encoders that see an image as separate square tiles, and fold neighbouring patches into a token."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRequest
from covist.contract.family import Family, Removable, RequestedNow, SignalSink
from covist.contract.signals import ImageSignals
from covist.families.hooks import Scratch, WrappedMethod
from covist.families.incoming import choose_query_patches
from covist.families.patch_attention import PatchAttention, ProjectionTap
from covist.families.reads import Placing, ReadableTower, ReadTaps, RecordedReads, of_entries
from covist.grid import Grid


class TileFamily(Family):
    """A family with such an encoder. Only the prompt shows which tiles form one image: `images_in` joins them."""

    needs_clip_text = False
    encoder_signal = "incoming attention of the last block"
    queries_and_keys: ClassVar[tuple[str, str]] = ("q_proj", "k_proj")
    """Modules of the tower's attention whose outputs are its queries and keys."""
    class_tokens: ClassVar[int] = 0
    """Tokens before the patches of a tile, which the decoder does not receive."""

    @property
    @abstractmethod
    def tower(self) -> Any:
        """The module that encodes the tiles."""

    @property
    @abstractmethod
    def encoder_layers(self) -> Sequence[Any]:
        """The layers of the tower; the last of them feeds the projector."""

    @abstractmethod
    def attention_of(self, layer: Any) -> Any:
        """The attention of a layer."""

    @property
    @abstractmethod
    def projector(self) -> Any:
        """The module from folded patches [tiles, T, v] to decoder embeddings."""

    @abstractmethod
    def fold(self, patches: Tensor) -> Tensor:
        """[tiles, patches, c] -> [tiles, T, c x patches of a token], as the model folds them."""

    def check(self, arguments: dict[str, Any]) -> None:
        """Refuse a call of `get_image_features` whose features do not come from the captured block."""

    def _attention_tap(self, layer: Any, is_requested: Callable[[], bool]) -> ProjectionTap:
        attention = self.attention_of(layer)
        return ProjectionTap(attention, attention.num_heads, *self.queries_and_keys, "v_proj", is_requested)

    def capture(
        self, sink: SignalSink, requests: Sequence[EncoderRequest] = (), requested_now: RequestedNow | None = None
    ) -> list[Removable]:
        layers, scratch = self.encoder_layers, Scratch()
        attention = self.attention_of(layers[-1])
        tap = ProjectionTap(attention, attention.num_heads, *self.queries_and_keys)
        reads = ReadTaps(ReadableTower(layers, len(layers) - 1, self._attention_tap), requests, requested_now)

        def keep_tiles(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            scratch.leave("pixels", kwargs["pixel_values"].detach())
            scratch.leave("unpadded", kwargs.get("patch_attention_mask"))

        def keep_features(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            scratch.leave("features", inputs[0].detach())

        def assemble(arguments: dict[str, Any], output: Any) -> None:
            self.check(arguments)
            spans = output.pooler_output if hasattr(output, "pooler_output") else output[1]
            embeddings = torch.cat([span.detach() for span in spans])
            sink(self._tiles(embeddings, tap.take(), requested=reads.take(), **scratch.take()))

        return [
            *tap.handles,
            *reads.handles,
            self.tower.register_forward_pre_hook(keep_tiles, with_kwargs=True),
            self.projector.register_forward_pre_hook(keep_features),
            WrappedMethod(self.base, "get_image_features", assemble),
        ]

    def _tiles(
        self,
        embeddings: Tensor,
        blocks: list[PatchAttention],
        pixels: Tensor,
        unpadded: Tensor | None,
        features: Tensor,
        requested: RecordedReads,
    ) -> list[ImageSignals]:
        """Signals of every tile; `embeddings` [tiles x T, d], `pixels` [tiles, 3, h, w], `features` [tiles, T, v].

        `unpadded` [tiles, rows, columns] bool is False for padding; None if there is no padding.
        """
        tokens = features.shape[1]
        count = blocks[0].keys.shape[0] - self.class_tokens
        patches = self._patches_of_tokens(count).to(features.device)
        shown = features.new_ones(len(blocks), count, dtype=torch.bool) if unpadded is None else unpadded.flatten(1)
        reads = (of_entries(requested, slice(tile, tile + 1), self.class_tokens) for tile in range(len(blocks)))
        return [
            self._tile(span, block.of(slice(self.class_tokens, None)), tile_features, patches, visible, image, of_tile)
            for span, block, tile_features, visible, image, of_tile in zip(
                embeddings.split(tokens), blocks, features, shown, pixels, reads, strict=True
            )
        ]

    def _patches_of_tokens(self, count: int) -> Tensor:
        """The patches of each token [T, patches of a token], found by letting the model fold patch numbers.

        float64 keeps every patch number exact.
        """
        return self.fold(torch.arange(count, dtype=torch.float64)[None, :, None])[0].long()

    def _tile(
        self,
        span: Tensor,
        block: PatchAttention,
        features: Tensor,
        patches: Tensor,
        visible: Tensor,
        pixels: Tensor,
        requested: RecordedReads,
    ) -> ImageSignals:
        side, tokens, placing = isqrt(len(patches)), len(patches), self._placing(patches, visible)
        return ImageSignals(
            grid=Grid(((side, side),)),
            span=span,
            content=torch.ones(tokens, dtype=torch.bool, device=span.device),
            read_attention=lambda: placing.masses(placing.incoming(block)[None]).view(1, 1, tokens),
            read_keys=lambda: placing.means(block.keys.flatten(1)[None]),
            read_hidden=lambda: features,
            pack=torch.arange(tokens, device=span.device),
            project=self.projector,
            requested=placing.reads(requested),
            read_pixels=lambda: [pixels.cpu()],
        )

    def _placing(self, patches: Tensor, visible: Tensor) -> Placing:
        """How the patches [T, patches of a token] of a tile become tokens; those not `visible` are padding."""
        order, merge = patches.flatten(), isqrt(patches.shape[1])

        def shown() -> Tensor:
            return order[visible[order]]

        def query_patches() -> list[Tensor]:
            count = len(shown())
            exact = self.exact_attention or count < len(order)
            return choose_query_patches(count, merge, exact, patches.device)

        return Placing(
            query_patches,
            masses=lambda per_patch: per_patch[0][patches].sum(1),
            means=lambda per_patch: per_patch[0][patches].float().mean(1),
            states=lambda per_patch: per_patch[0][patches].flatten(1),
            shown=shown,
        )
