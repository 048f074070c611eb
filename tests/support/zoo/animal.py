"""A model of the zoo, and prompts for it: words, the placeholders of the images, words."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from support.checks import Subject
from support.zoo import ZOO
from support.zoo.entry import Entry
from support.zoo.tiny import (
    CLOSING,
    IMAGE,
    OPENING,
    PAD,
    VIDEO,
    VIDEO_CLOSING,
    VIDEO_OPENING,
    WIDTH,
    WORDS,
    config_of,
    model_of,
)

TYPES = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
BEFORE, BETWEEN, AFTER = 4, 3, 10


class Animal(Subject):
    """A tiny model of one type."""

    budget = 4
    suppressed = [PAD, IMAGE, VIDEO, OPENING, CLOSING, VIDEO_OPENING, VIDEO_CLOSING]

    def __init__(self, entry: Entry):
        self.entry = entry
        given = {"text_config": entry.text, "vision_config": entry.vision, **entry.more}
        parts = {name: value for name, value in given.items() if name.endswith("_config")}
        options = {name: value for name, value in given.items() if name not in parts}
        config = config_of(entry.model_type, parts, options)
        if entry.eager:
            config._attn_implementation = "eager"
        self.model = model_of(entry.model_type, config)
        self._counts: dict[int, int] = {}
        self.tokens = max(map(self.count, range(3)))

    def count(self, seed: int) -> int:
        """The placeholders of an image."""
        if seed not in self._counts:
            self._counts[seed] = self._rows("get_image_features", self.entry.visual(self.model.config, [[seed]]))
        return self._counts[seed]

    @torch.no_grad()
    def _rows(self, method: str, visual: dict[str, Tensor]) -> int:
        base = getattr(self.model, "model", self.model)
        encode = getattr(base if hasattr(base, method) else self.model, method)
        known = inspect.signature(encode).parameters
        pixels, *rest = visual.items()  # pixels have different names
        return rows_of(encode(pixels[1], **{name: value for name, value in rest if name in known}))

    def ask(self, *prompts: Sequence[int]) -> dict[str, Tensor]:
        """The inputs of a batch, padded on the left; each prompt is given by the seeds of its images."""
        rows = [self._row(seeds) for seeds in prompts]
        length = max(map(len, rows))
        ids = torch.tensor([[PAD] * (length - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
        visual = self.entry.visual(self.model.config, [list(seeds) for seeds in prompts])
        return {"input_ids": ids, "attention_mask": mask, **self._types(ids == IMAGE), **visual}

    def film(self) -> dict[str, Tensor]:
        """The inputs of one prompt with a video."""
        assert self.entry.film is not None
        visual, token, runs = self.entry.film(self.model.config), self.entry.film_token, self.entry.runs
        length, words = self._rows("get_video_features", visual) // runs, _words(200, seed=70)
        row = [*words[:BEFORE], VIDEO_OPENING]
        for index in range(runs):
            row += [*words[10 * index :][:BETWEEN], OPENING, *[token] * length, CLOSING]
        ids = torch.tensor([[*row, VIDEO_CLOSING, *words[-AFTER:]]])
        types = self._types(ids == token, kind=2)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **types, **visual}

    def _types(self, visual: Tensor, kind: int = 1) -> dict[str, Tensor]:
        """What a prompt says of its tokens; only types of modalities distinguish videos from images."""
        taken = inspect.signature(self.model.forward).parameters
        named = [name for name in TYPES if name in taken]
        return {name: visual.long() * self.entry.types * (1 if name == TYPES[0] else kind) for name in named}

    def _row(self, seeds: Sequence[int]) -> list[int]:
        words = _words(200, seed=sum(seeds))
        row = words[:BEFORE]
        for index, seed in enumerate(seeds):
            row += [OPENING, *[IMAGE] * self.count(seed), CLOSING, *words[BEFORE + BETWEEN * index :][:BETWEEN]]
        return row + words[len(seeds) - 1 - AFTER :]

    def prompt(self, images: int = 1) -> dict[str, Tensor]:
        return self.ask(range(images))

    def batch(self) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        # More is removed from the second prompt, so that the padding of the first changes.
        return self.ask([2], [0, 1]), [self.ask([2]), self.ask([0, 1])]

    def question(self) -> Tensor:
        return torch.tensor([_words(7, seed=50)])

    def longer(self, inputs: dict[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        added = ids.shape[1] - inputs["input_ids"].shape[1]
        # What follows a prefix that sees all of itself is of another type.
        later = {
            name: torch.nn.functional.pad(inputs[name], (0, added), value=int(self.entry.types == 0))
            for name in TYPES
            if name in inputs
        }
        longer = {**inputs, **later, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "num_frames_per_video" in inputs:  # the model's own call loses it; `generate` encodes by itself, as here
            names = ("pixel_values_videos", "video_position_ids", "num_frames_per_video")
            video = self.model.model.get_video_features(**{name: longer.pop(name) for name in names}, return_dict=True)
            longer["mm_encoder_outputs"] = {"video": video}
        return longer

    def is_image(self, ids: Tensor) -> Tensor:
        return (ids == IMAGE) | (ids == VIDEO)


def _words(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(WORDS.start, WORDS.stop, (count,), generator=generator).tolist()


def rows_of(output: Any) -> int:
    """How many features an encoder's output brings."""
    features = getattr(output, "pooler_output", None)
    if features is None:
        deep = getattr(output, "deepstack_features", None)
        features = deep[0][1] if deep else output.last_hidden_state
    tensors = [features] if isinstance(features, Tensor) else features
    return sum(one.numel() for one in tensors) // WIDTH


@cache
def animal(name: str) -> Animal:
    return Animal(ZOO[name])
