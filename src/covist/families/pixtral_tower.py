"""Signals of the Pixtral vision tower: images of any size, packed into one sequence, with two-dimensional rotary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covist.contract.signals import ImageSignals
from covist.families.incoming import choose_query_patches_in_rows
from covist.families.patch_attention import PatchAttention
from covist.families.patch_tower import PatchRecords, PatchTowerFamily
from covist.families.projected import TowerOutput
from covist.families.reads import Placing, RecordedReads, of_patches
from covist.grid import Grid


class PixtralTowerFamily(PatchTowerFamily):
    """A family with this tower. The prompt has a row break after every row of tokens; it counts as text and is kept."""

    tower_types = ("pixtral",)
    attention_name = "attention"
    processor = "PixtralProcessor"

    @property
    def merge(self) -> int:
        """A token is made of merge x merge patches."""
        return 1

    @property
    def encoder_layers(self) -> Sequence[Any]:
        return self.base.vision_tower.transformer.layers

    def project(self, features: Tensor) -> Tensor:
        """Token features [*, patches x v] (the patches of a token side by side) -> decoder embeddings [*, d]."""
        return self.base.multi_modal_projector(features)

    def images(self, output: TowerOutput[PatchRecords]) -> list[ImageSignals]:
        ((block,),), features = output.captured.values(), output.features.flatten(0, -2)  # one sequence for all images
        pixels, sizes = output.arguments["pixel_values"], output.arguments.get("image_sizes")
        if sizes is None:  # the images are not padded
            sizes = [pixels.shape[-2:]] * len(pixels)
        side, spans = self.base.vision_tower.patch_size, torch.cat(list(output.spans)).detach()
        signals, first_patch, first_token = [], 0, 0
        for image, size in zip(pixels, sizes, strict=True):
            rows, columns = (int(length) // side for length in size)
            of_image = slice(first_patch, first_patch + rows * columns)
            grid = Grid(((rows // self.merge, columns // self.merge),))
            span = spans[first_token : first_token + grid.size]
            requested = of_patches(output.requested, of_image)
            signals.append(self._image(span, grid, columns, block.of(of_image), features[of_image], requested))
            signals[-1].read_pixels = partial(_read_image, image, grid, side * self.merge)
            first_patch, first_token = of_image.stop, first_token + grid.size
        return signals

    def _image(
        self, span: Tensor, grid: Grid, columns: int, block: PatchAttention, features: Tensor, requested: RecordedReads
    ) -> ImageSignals:
        """The signals of an image, given its `block`, `features` [patches, v], requested reads and patches per row."""
        count = len(features)
        members = self._members(count, columns).to(span.device)

        def query_patches() -> list[Tensor]:
            return choose_query_patches_in_rows(count, columns, self.exact_attention, span.device)

        placing = Placing(
            query_patches,
            masses=lambda per_patch: per_patch[0][members].sum(1),
            means=lambda per_patch: per_patch[0][members].float().mean(1),
            states=lambda per_patch: per_patch[0][members].flatten(1),
        )
        return ImageSignals(
            grid=grid,
            span=span,
            content=torch.ones(grid.size, dtype=torch.bool, device=span.device),
            read_attention=lambda: placing.masses(placing.incoming(block)[None]).view(1, 1, -1),
            read_keys=lambda: placing.means(block.keys.flatten(1)[None]),
            read_hidden=lambda: placing.states(features[None]),
            pack=torch.arange(grid.size, device=span.device),
            project=self.project,
            requested=placing.reads(requested),
        )

    def _members(self, count: int, columns: int) -> Tensor:
        """The patches of each token [N, merge x merge]; patches after the last complete token belong to none."""
        merge, numbers = self.merge, torch.arange(count).view(-1, columns)
        whole = numbers[: len(numbers) // merge * merge, : columns // merge * merge]
        return whole.unflatten(1, (-1, merge)).unflatten(0, (-1, merge)).transpose(1, 2).flatten(2).flatten(0, 1)


def _read_image(image: Tensor, grid: Grid, side: int) -> list[Tensor]:
    """The one view of an image [3, h, w], without the padding of the batch and without pixels outside its tokens."""
    ((rows, columns),) = grid.views
    return [image[:, : rows * side, : columns * side].detach().cpu()]
