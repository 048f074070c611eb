"""A pointing loss without a preferred token: every word of a question attends to the things that it is about.

Every word of the prompt has the same weight, because some methods rank visual tokens by the attention of the last
token, and training must not favour them.
"""

import numpy as np
import torch

from covist.tiny.hd.scenes import HD_SIDE
from covist.tiny.questions import Question
from covist.tiny.scenes import Scene
from train.tiny.packing import IGNORED, Packed
from train.tiny.pointing import PointingTarget


def even_targets(
    scenes: list[Scene], asked: list[list[Question]], packed: Packed, shown: np.ndarray
) -> list[PointingTarget]:
    """Targets per image; `shown` [n, t] is the thing of the whole scene that every shown token shows (0: none)."""
    targets = []
    prompts = (packed.labels == IGNORED) | (packed.labels.roll(1, 1) == IGNORED)  # up to where the answer begins
    for scene, questions, blocks, prompt, owners in zip(scenes, asked, packed.blocks, prompts, shown, strict=True):
        tokens, patches, centres = [], [], []
        for block, item in enumerate(questions):
            if not item.about:
                continue
            words = ((blocks == block) & prompt).nonzero()[:, 0]
            numbers = [scene.things.index(thing) + 1 for thing in item.about]
            single = item.about[0] if len(item.about) == 1 else None
            tokens.append(words)
            patches += [np.isin(owners, numbers).astype(np.float32)] * len(words)
            centres += [(single.x, single.y) if single else (np.nan, np.nan)] * len(words)
        masks = torch.from_numpy(np.stack(patches))
        targets.append(PointingTarget(torch.cat(tokens), masks, torch.tensor(centres) / HD_SIDE))
    return targets
