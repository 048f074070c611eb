"""Training the first bed's tower on views of crowded scenes: smaller things, tiny glyphs, and a half-size base view."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CLIPModel

from train.tiny.captions import caption_batch, visible_things
from train.tiny.hd.views import TILE_SIDE, VIEW_GRID, VIEW_PATCHES, VIEWS, ViewBank
from train.tiny.vision import (
    Heads,
    contents_target,
    contrastive_loss,
    dense_accuracy,
    dense_loss,
    encode,
    patch_targets,
)

# of every view: the pixel of the image at its upper left corner, and pixels of the view per pixel of the image
_CORNERS = torch.tensor([[0, 0], [0, 0], [1, 0], [0, 1], [1, 1]]) * TILE_SIDE  # [views, (x, y)]
_SCALES = torch.tensor([0.5, 1, 1, 1, 1])

GLYPH_WEIGHT = 4.0  # few patches show glyphs, and they are the hardest to read


@dataclass(frozen=True)
class ViewPhase:
    name: str
    share: float  # of the time of the vision stage
    images: int  # per step
    tiles: int = 2  # shown of each image, beside the base view


VIEW_PHASES = (ViewPhase("views", 1.0, images=8),)


def in_view(tables: Tensor, views: Tensor) -> Tensor:
    """The tables [n, things, columns] with every centre in pixels of a view [n] instead of the image."""
    moved = tables.clone()
    centres = (tables[..., -3:-1] - _CORNERS[views][:, None]) * _SCALES[views][:, None, None]
    moved[..., -3:-1] = centres.round().long()
    return moved


class ViewTrainer:
    """Tower, text tower and heads; a step uses the base view and some tiles of a few images."""

    def __init__(self, clip: CLIPModel, bank: ViewBank, seed: int):
        self.clip, self.bank, self.seed = clip, bank, seed
        self.heads = Heads(clip.vision_embed_dim)

    def step(self, phase: ViewPhase, number: int) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([self.seed, 13, number])
        indices = rng.integers(len(self.bank), size=phase.images)
        shown = np.stack([[0, *rng.choice(np.arange(1, VIEWS), phase.tiles, replace=False)] for _ in indices])
        patches, owners, tables = self.bank.batch(indices)
        views, row = torch.from_numpy(shown).flatten(), torch.arange(len(indices)).repeat_interleave(shown.shape[1])
        patches = patches.unflatten(1, (VIEWS, VIEW_PATCHES))[row, views]  # [n, 256, 48]
        owners = owners.unflatten(1, (VIEWS, VIEW_PATCHES))[row, views]
        tables = in_view(tables[row], views)
        places = torch.arange(VIEW_PATCHES).expand(len(views), -1)
        features, pooled = encode(self.clip.vision_model, patches, places)
        outputs, targets = self.heads(features), patch_targets(owners, tables, places, VIEW_GRID)
        dense = dense_loss(outputs, targets, owners, GLYPH_WEIGHT)
        seen = F.binary_cross_entropy_with_logits(self.heads.contents(pooled), contents_target(owners, tables))
        scenes = [self.bank.scene(int(indices[index])) for index in row]
        visible = [visible_things(scene, own.numpy()) for scene, own in zip(scenes, owners, strict=True)]
        contrast, found = contrastive_loss(self.clip, pooled, caption_batch(visible, rng))
        figures = {"dense": float(dense.detach()), "contents": float(seen.detach()), "found": float(found)}
        tiles = views > 0
        figures |= _accuracy(outputs, targets, tiles, "tile") | _accuracy(outputs, targets, ~tiles, "base")
        return dense + 4 * seen + 0.5 * contrast, figures


def _accuracy(outputs: dict[str, Tensor], targets: dict[str, Tensor], rows: Tensor, view: str) -> dict[str, float]:
    shown, wanted = ({name: values[rows] for name, values in given.items()} for given in (outputs, targets))
    found = dense_accuracy(shown, wanted)
    return {f"{view} {name}": value for name, value in found.items()}
