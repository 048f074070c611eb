"""Captions for the contrastive loss, and which captions are also true of other images of the batch."""

import numpy as np
import torch
from torch import Tensor

from covist.tiny.questions import article
from covist.tiny.scenes import Scene, Thing
from covist.tiny.text import build_caption_tokenizer

# statements and questions, so that the text tower has seen every word that a user may send to it
_OPENINGS = (
    "", "", "this picture is {}", "there is {}", "is there {}?", "where is {}?", "what color is {}?",
    "what shape is {}?", "how many are there of {}?", "is {} left or right of this?", "is {} above or below this?",
)  # fmt: skip
_TOKENIZER = build_caption_tokenizer()


def true_names(thing: Thing) -> list[str]:
    if thing.char:
        names = [f"{thing.kind} {thing.char}"]
        return names + [f"{thing.role} {thing.kind} {thing.char}"] if thing.role != "middle" else names
    plain = [f"{thing.color} {thing.shape}", f"{thing.color} object", thing.shape]
    return plain + [f"{thing.size} {name}" for name in plain]


def caption(things: list[Thing], rng: np.random.Generator, most: int = 3) -> tuple[str, set[str]]:
    """A caption that mentions up to `most` of the things, and the names it uses."""
    mentioned = rng.permutation(len(things))[: rng.integers(1, most + 1)]
    names = []
    for index in mentioned:
        ways = true_names(things[index])
        names.append(ways[0] if rng.random() < 0.5 else ways[int(rng.integers(len(ways)))])
    phrase = " and ".join(f"{article(name)} {name}" for name in names) or "this picture"
    opening = _OPENINGS[int(rng.integers(len(_OPENINGS)))] or "{}"
    return opening.format(phrase), set(names)


def caption_batch(visible: list[list[Thing]], rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids and mask of one caption per image, and `allowed` [captions, images]: whether a pair is contrasted.

    A caption that is also true of another image is not a negative for it.
    """
    captions, mentions = zip(*(caption(things, rng) for things in visible), strict=True)
    truths = [{name for thing in things for name in true_names(thing)} for things in visible]
    allowed = torch.tensor([[i == j or not m <= t for j, t in enumerate(truths)] for i, m in enumerate(mentions)])
    tokens = _TOKENIZER(list(captions), padding=True, truncation=True, return_tensors="pt")
    return tokens.input_ids, tokens.attention_mask, allowed


def visible_things(scene: Scene, owners: np.ndarray) -> list[Thing]:
    """Things, except decoys, that own at least one of the shown patches."""
    shown = set(owners.tolist())
    return [thing for index, thing in enumerate(scene.things, 1) if index in shown and thing.kind != "decoy"]
