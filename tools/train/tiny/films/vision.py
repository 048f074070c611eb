"""Training the tower on crowded frames: every patch names what it shows and finds its centre."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import SiglipVisionModel

from covist.tiny.films.scenes import FILM_SIDE
from train.tiny.films.bank import CLASSES, FrameBank, scaled

BACKGROUND_WEIGHT = 0.3
DIGIT_WEIGHT = 2.0  # the hardest to read


@dataclass(frozen=True)
class FramePhase:
    name: str
    share: float  # of the time of the vision stage
    frames: int  # per step


FRAME_PHASES = (FramePhase("frames", 1.0, frames=64),)


def encode(tower: SiglipVisionModel, patches: Tensor) -> Tensor:
    """The tower on patches [n, patches, values] -> features of its last layer [n, patches, width]."""
    embeddings = tower.embeddings
    kernel = embeddings.patch_embedding
    hidden = F.linear(patches, kernel.weight.flatten(1), kernel.bias) + embeddings.position_embedding.weight
    for layer in tower.encoder.layers:
        hidden = layer(hidden, None)
    return hidden


class FrameHeads(nn.Module):
    """Linear read-outs that exist only during training."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.split = [len(values) + 1 for values in CLASSES.values()] + [2]  # classes, centre
        self.patch = nn.Linear(width, sum(self.split))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        parts = self.patch(self.norm(features)).split(self.split, dim=-1)
        return dict(zip([*CLASSES, "centre"], parts, strict=True))


class FrameTrainer:
    """Tower and heads; with one step."""

    def __init__(self, tower: SiglipVisionModel, bank: FrameBank, seed: int):
        self.tower, self.bank, self.seed = tower, bank, seed
        self.heads = FrameHeads(tower.config.hidden_size)

    def step(self, phase: FramePhase, number: int) -> tuple[Tensor, dict[str, float]]:
        rng = np.random.default_rng([self.seed, 30, number])
        indices = rng.integers(len(self.bank), size=phase.frames)
        owners = self.bank.owners[indices]  # [n, patches]
        rows = np.take_along_axis(self.bank.tables[indices], owners[..., None].astype(int), axis=1)
        targets = torch.from_numpy(rows).long()
        outputs = self.heads(encode(self.tower, scaled(self.bank.patches[indices])))
        weight = torch.from_numpy(np.where(owners > 0, 1.0, BACKGROUND_WEIGHT)).float()
        weight = torch.where(targets[..., 2] > 0, DIGIT_WEIGHT, weight)
        weight = weight / weight.sum()
        loss, figures = torch.zeros(()), {}
        for column, name in enumerate(CLASSES):
            target = targets[..., column]
            loss = loss + (F.cross_entropy(outputs[name].mT, target, reduction="none") * weight).sum()
            figures[name] = float((outputs[name].argmax(-1) == target)[target > 0].float().mean())
        shown = torch.from_numpy(owners > 0)
        offset = outputs["centre"][shown] - targets[..., 3:5][shown] / FILM_SIDE
        centre = F.smooth_l1_loss(offset, torch.zeros_like(offset), beta=0.05)
        figures["centre"] = float(offset.detach().abs().mean()) * FILM_SIDE
        return loss + 4 * centre, {"loss": float(loss.detach()), **figures}
