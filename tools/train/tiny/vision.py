"""Training the tower to recognise what every patch shows (dense heads) and what the image shows (captions).

The curriculum widens what the tower sees at once: small windows teach glyphs and shapes at a fraction of the cost of
whole images, scattered tiles teach distance, and whole images come last.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPModel, CLIPVisionModel

from covist.tiny.scenes import COLORS, GRID, IMAGE_SIZE, PATCH, SHAPES
from train.tiny.captions import caption_batch, visible_things
from train.tiny.data import CLASSES, SceneBank

TILE = 6  # side of a tile, in patches
BACKGROUND_WEIGHT = 0.3  # three of four patches show only background


@dataclass(frozen=True)
class VisionPhase:
    name: str
    share: float  # of the time of the vision stage
    images: int  # per step
    window: int | None = None  # side of the square of patches shown
    tiles: int | None = None  # tiles shown of the 4x4 that make up the image
    views: int = 1  # windows per image

    @property
    def captioned(self) -> bool:
        return self.window is None or self.window >= GRID // 2


VISION_PHASES = (
    VisionPhase("6x6 windows", 0.24, images=32, window=6, views=4),
    VisionPhase("12x12 windows", 0.24, images=48, window=12),
    VisionPhase("4 tiles of 16", 0.20, images=48, tiles=4),
    VisionPhase("all patches", 0.32, images=12),
)


def encode(tower: CLIPVisionModel, patches: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Run the tower on some patches of each image, each at its own position.

    patches [n, t, 48] and places [n, t] -> penultimate patch features [n, t, width], class feature [n, width].
    """
    embeddings = tower.embeddings
    kernel = embeddings.patch_embedding.weight.flatten(1)  # [width, 48]
    table = embeddings.position_embedding.weight
    hidden = F.linear(patches, kernel) + table[places + 1]
    first = (embeddings.class_embedding + table[0]).expand(len(patches), 1, -1)
    hidden = tower.pre_layrnorm(torch.cat([first, hidden], dim=1))
    for layer in tower.encoder.layers[:-1]:
        hidden = layer(hidden, None)
    final = tower.encoder.layers[-1](hidden, None)
    return hidden[:, 1:], tower.post_layernorm(final[:, 0])


class Heads(nn.Module):
    """Linear read-outs that exist only during training."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.split = [len(values) + 1 for values in CLASSES.values()] + [1, 2]  # classes, centre, position
        self.patch = nn.Linear(width, sum(self.split))
        self.contents = nn.Linear(width, len(COLORS) * len(SHAPES) + len(CLASSES["char"]))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        parts = self.patch(self.norm(features)).split(self.split, dim=-1)
        return dict(zip([*CLASSES, "centre", "position"], parts, strict=True))


def choose_places(phase: VisionPhase, owners: Tensor, generator: torch.Generator) -> Tensor:
    """Which patches of each image are shown, [n, t]."""
    count = len(owners)
    if phase.tiles:
        rows, columns = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
        tile = (rows // TILE * (GRID // TILE) + columns // TILE).flatten()  # [576]
        chance = torch.rand(count, (GRID // TILE) ** 2, generator=generator)
        chosen = chance.argsort(dim=1).argsort(dim=1) < phase.tiles  # [n, tiles]
        return chosen[:, tile].nonzero()[:, 1].view(count, phase.tiles * TILE * TILE)
    if phase.window is None:
        return torch.arange(GRID * GRID).expand(count, -1)
    # a window around a random patch of a random thing
    anchor = torch.multinomial((owners > 0).float() + 1e-3, 1, generator=generator)
    jitter = torch.randint(0, phase.window, (2, count, 1), generator=generator)
    top = (anchor // GRID - jitter[0]).clamp(0, GRID - phase.window)
    left = (anchor % GRID - jitter[1]).clamp(0, GRID - phase.window)
    steps = torch.arange(phase.window)
    inside = (steps[:, None] * GRID + steps[None]).reshape(1, -1)
    return top * GRID + left + inside


def patch_targets(owners: Tensor, tables: Tensor, places: Tensor, grid: int = GRID) -> dict[str, Tensor]:
    """Targets of the dense heads for the shown patches: `owners` [n, t] at `places` [n, t] of a square grid."""
    rows = tables.gather(1, owners[..., None].expand(-1, -1, tables.shape[-1]))  # [n, t, columns]
    targets = {name: rows[..., column] for column, name in enumerate(CLASSES)}
    middle = torch.stack([places % grid, places // grid], dim=-1) * PATCH + PATCH / 2
    centre = rows[..., -3:-1]
    targets["position"] = torch.where((owners > 0)[..., None], centre, middle) / (grid * PATCH)
    targets["centre"] = ((centre // PATCH == (middle // PATCH)).all(-1) & (rows[..., -1] > 0)).float()
    return targets


def dense_loss(
    outputs: dict[str, Tensor], targets: dict[str, Tensor], owners: Tensor, glyph_weight: float = 1.0
) -> Tensor:
    weight = torch.where(owners > 0, 1.0, BACKGROUND_WEIGHT)
    weight = torch.where(targets["char"] > 0, glyph_weight, weight)
    weight = weight / weight.sum()
    loss = torch.zeros(())
    for name in CLASSES:
        loss = loss + (F.cross_entropy(outputs[name].mT, targets[name], reduction="none") * weight).sum()
    centre = F.binary_cross_entropy_with_logits(outputs["centre"][..., 0], targets["centre"], reduction="none")
    position = F.smooth_l1_loss(outputs["position"], targets["position"], reduction="none", beta=0.05).sum(-1)
    return loss + ((2 * centre + 4 * position) * weight).sum()


def contents_target(owners: Tensor, tables: Tensor) -> Tensor:
    """Which colour-shape pairs and which characters are shown, [n, pairs + characters]."""
    rows = tables.gather(1, owners[..., None].expand(-1, -1, tables.shape[-1]))
    color, shape, _, char = rows[..., :4].unbind(-1)
    pairs = len(COLORS) * len(SHAPES)
    slot = torch.where(shape > 0, (color - 1) * len(SHAPES) + shape, torch.where(char > 0, pairs + char, 0))
    target = torch.zeros(len(owners), 1 + pairs + len(CLASSES["char"]))
    return target.scatter_(1, slot, 1.0)[:, 1:]


def contrastive_loss(clip: CLIPModel, pooled: Tensor, captions: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """InfoNCE without the pairs that are true by accident; also the share of captions that find their image."""
    ids, mask, allowed = captions
    text = F.normalize(clip.get_text_features(input_ids=ids, attention_mask=mask).pooler_output, dim=-1)
    image = F.normalize(clip.visual_projection(pooled), dim=-1)
    logits = clip.logit_scale.clamp(max=4.0).exp() * text @ image.T  # [captions, images]
    logits = logits.masked_fill(~allowed, -1e4)
    own = torch.arange(len(logits))
    loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    return loss, (logits.argmax(1) == own).float().mean()


class VisionTrainer:
    """Tower, text tower and heads, with one step of any phase."""

    def __init__(self, clip: CLIPModel, bank: SceneBank, seed: int):
        self.clip, self.bank = clip, bank
        self.heads = Heads(clip.vision_embed_dim)
        self.seed = seed

    def step(self, phase: VisionPhase, number: int) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([self.seed, 3, number])
        indices = rng.integers(len(self.bank), size=phase.images)
        patches, owners, tables = (part.repeat_interleave(phase.views, 0) for part in self.bank.batch(indices))
        places = choose_places(phase, owners, torch.Generator().manual_seed(int(rng.integers(1 << 30))))
        owners = owners.gather(1, places)
        patches = patches.gather(1, places[..., None].expand(-1, -1, patches.shape[-1]))
        features, pooled = encode(self.clip.vision_model, patches, places)
        outputs, targets = self.heads(features), patch_targets(owners, tables, places)
        dense = dense_loss(outputs, targets, owners)
        shown = F.binary_cross_entropy_with_logits(self.heads.contents(pooled), contents_target(owners, tables))
        loss = dense + 4 * shown
        figures = {"loss": float(loss.detach()), "dense": float(dense.detach()), **dense_accuracy(outputs, targets)}
        figures["contents"] = float(shown.detach())
        if phase.captioned:
            scenes = [self.bank.scene(int(index)) for index in indices]
            visible = [visible_things(scene, row.numpy()) for scene, row in zip(scenes, owners, strict=True)]
            contrast, found = contrastive_loss(self.clip, pooled, caption_batch(visible, rng))
            loss = loss + 0.5 * contrast
            figures |= {"contrast": float(contrast.detach()), "found": float(found)}
        return loss, figures


@torch.no_grad()
def dense_accuracy(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, float]:
    """Accuracy of each head on the patches that show something that it should name."""
    figures = {}
    for name in CLASSES:
        named = targets[name] > 0
        right = outputs[name].argmax(-1) == targets[name]
        figures[name] = float(right[named].float().mean()) if named.any() else 1.0
    centre, wanted = outputs["centre"][..., 0] > 0, targets["centre"] > 0
    figures["centre"] = float((centre & wanted).sum() / (centre | wanted).sum().clamp(min=1))
    figures["position"] = float((outputs["position"] - targets["position"]).abs().mean()) * IMAGE_SIZE
    return figures
