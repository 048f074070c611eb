"""A loss that teaches where to look: from the words of a question to the patches and positions of their things.

With answers alone, the decoder stays for a long time on a plateau where it names any digit or colour of the image, and
relations stay at chance; with this loss, both end within minutes. Nothing of it is part of the exported model.
"""

import re
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from covist.tiny.questions import Question
from covist.tiny.scenes import GRID, IMAGE_SIZE, PATCH, Scene, Thing
from train.tiny.packing import PREFIX, Packed

POINTING_LAYER, LOCATING_LAYER = 3, 5  # after them, a word should know its patches, and their position in the image


@dataclass(frozen=True)
class PointingTarget:
    """What the words of one image's questions should attend to; p words point."""

    tokens: Tensor  # [p], places in the text
    patches: Tensor  # [p, t], 1 if a shown patch belongs to a thing that the word is about
    centres: Tensor  # [p, 2], the position of that thing, from 0 to 1; NaN unless it is a single thing


class Pointer(torch.nn.Module):
    """The read-out that predicts patches and positions from hidden states."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.query, self.key = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.place = torch.nn.Linear(width, 2)

    def forward(self, states: tuple[Tensor, ...], targets: list[PointingTarget]) -> Tensor:
        """Cross-entropy to the relevant patches, if there are any, and distance to the centre of a single thing."""
        early, late = (states[min(layer, len(states) - 1)] for layer in (POINTING_LAYER, LOCATING_LAYER))
        early, pointing, locating = self.norm(early), [], []
        for row, later, target in zip(early, late, targets, strict=True):
            text = len(PREFIX) + target.patches.shape[1]
            query, key = self.query(row[text:][target.tokens]), self.key(row[len(PREFIX) : text])
            scores = (query @ key.T / row.shape[1] ** 0.5).log_softmax(dim=1)
            share = target.patches / target.patches.sum(1, keepdim=True).clamp(min=1)
            pointing.append(-(share * scores).sum(1)[target.patches.any(1)])
            single = target.centres.isfinite().all(1)
            guess = self.place(F.layer_norm(later[text:][target.tokens[single]], row.shape[1:]))
            locating.append(F.smooth_l1_loss(guess, target.centres[single], reduction="none", beta=0.05).sum(1))
        return torch.cat(pointing).mean() + 4 * torch.cat(locating).mean()


def pointers(item: Question) -> list[tuple[int, tuple[Thing, ...]]]:
    """Which token should attend to which things; tokens are counted back from the last one of the prompt.

    The last token attends to all things on which the answer depends; in a relation, each name also attends to its
    own thing.
    """
    found = [(0, item.about)]
    if item.family == "relation":
        first, _ = re.split("left or right of|above or below", item.question)
        length = len(item.question.split()) + 1  # with the question mark
        found += [(length - len(first.split()) + 1, item.about[:1]), (2, item.about[1:])]
    return found


def _patches_of(
    things: tuple[Thing, ...], scene: Scene, owners: np.ndarray, places: np.ndarray, single: bool
) -> np.ndarray:
    """The shown patches that belong to the things, [t]; if `single`, only the one nearest to the centre of each."""
    mask = np.zeros(len(owners), dtype=np.float32)
    for thing in things:
        own = np.flatnonzero(owners == scene.things.index(thing) + 1)
        if single and len(own):
            x, y = places[own] % GRID * PATCH + PATCH / 2, places[own] // GRID * PATCH + PATCH / 2
            own = own[np.hypot(x - thing.x, y - thing.y).argmin()]
        mask[own] = 1
    return mask


def pointing_targets(
    scenes: list[Scene], asked: list[list[Question]], packed: Packed, shown: np.ndarray, places: np.ndarray
) -> list[PointingTarget]:
    """Targets per image; `shown` are the owners of the shown patches, `places` their positions, both [n, t].

    Counting means looking at every thing once, so these questions point at a single patch of each.
    """
    targets = []
    for scene, questions, answered, owners, where in zip(scenes, asked, packed.answered, shown, places, strict=True):
        tokens, patches, centres = [], [], []
        for last, item in zip(answered.nonzero()[:, 0].tolist(), questions, strict=True):
            for back, things in pointers(item):
                tokens.append(last - back)
                patches.append(_patches_of(things, scene, owners, where, single=item.family == "counting"))
                centres.append((things[0].x, things[0].y) if len(things) == 1 else (np.nan, np.nan))
        masks = torch.from_numpy(np.stack(patches))
        targets.append(PointingTarget(torch.tensor(tokens), masks, torch.tensor(centres) / IMAGE_SIZE))
    return targets
