"""Finds the images of all prompts of a call, with what is asked about them, and lets the method begin with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covist.contract.instruction import Instruction
from covist.contract.signals import ImageSignals, PlacedSignals
from covist.contract.views import ImageContext
from covist.engine.allotment import Allotment, ages
from covist.engine.question import Turns
from covist.engine.sequence.beginnings import Beginnings, Entered
from covist.engine.sequence.host import upload
from covist.engine.sequence.images import ImageInPrompt, Sample
from covist.engine.sequence.prompts import PromptBatch, placed_images
from covist.engine.settings import CompressionSettings


@dataclass(frozen=True)
class Found:
    """An image of a prompt before its first reduction; its rows are on the host."""

    placed: PlacedSignals
    signals: ImageSignals  # without the tokens that the attention mask hides
    instruction: Instruction
    rows: Tensor  # [N] prompt rows of the content tokens that the mask shows
    markers: Tensor  # prompt rows of its markers
    first: tuple[int, ...]  # position of the first of them
    said: tuple[int, ...] | None  # ids of the instruction, if they are known


class ImageFinder:
    """The images of all prompts of a call."""

    def __init__(self, settings: CompressionSettings, prompt: PromptBatch, signals: Sequence[ImageSignals]):
        self._settings, self._prompt = settings, prompt
        self._masked: dict[Any, ImageSignals] = {}
        self._pieces = placed_images(prompt, signals)

    def samples(self) -> list[Sample]:
        """Every prompt, packed or not, with its images after their first reduction."""
        members = zip(self._prompt.members(), self._pieces, strict=True)
        found = [self._sample(row, member, pieces) for (row, member), pieces in members]
        positions = self._positions([(sample, image) for sample, _, images in found for image in images])
        allotment, beginnings = Allotment(self._settings), Beginnings(self._settings)
        entered: list[list[Entered]] = []
        for _, turns, images in found:
            contexts = [self._context(image, positions.pop(0)) for image in images]
            shown = [image.placed for image in images]
            budgets = allotment.budgets(contexts, partial(ages, turns, shown))
            # what a method knows about an image goes with its context
            entered.append([beginnings.add(contexts.pop(0), budgets.pop(0), one.first, one.said) for one in images])
        beginnings.finish()
        for (sample, _, images), results in zip(found, entered, strict=True):
            sample.images += [_in_prompt(*one) for one in zip(images, results, strict=True)]
        return [sample for sample, _, _ in found]

    def _sample(self, row: int, member: Tensor, pieces: list[PlacedSignals]) -> tuple[Sample, Turns, list[Found]]:
        """The prompt whose tokens `member` [n] bool marks in a row of the batch."""
        prompt, reader = self._prompt, self._settings.reader
        seen = prompt.valid[row] & member
        ids = None if prompt.ids is None else prompt.ids[row]
        images = self._settings.family.images_in(pieces, ids)
        seen = _without_unseen(seen, images)
        generated = max((prompt.generated(row, image.signals) for image in images), default=0)
        sample = Sample(
            seen.nonzero().squeeze(1), prompt.positions[row], prompt.embeddings[row], generated=generated, source=row
        )
        is_text = seen & ~prompt.is_image[row]
        is_text[len(is_text) - generated :] = False
        for image in images:
            is_text[image.start : image.end] = False
        turns = reader.turns(ids, is_text)
        instructions: dict[int, Instruction] = {}  # by the row after which the question begins
        found: list[Found] = []
        for number, image in enumerate(images):
            if not bool(seen[image.rows[image.signals.content_rows]].any()):
                continue  # a fully masked image is ignored
            after = images[turns.first_of_turn(images, number)].end
            if after not in instructions:
                instructions[after] = reader.read(ids, is_text, after, prompt.embeddings[row], turns)
            found.append(self._found(row, image, seen, instructions[after]))
        return sample, turns, found

    def _found(self, row: int, placed: PlacedSignals, seen: Tensor, instruction: Instruction) -> Found:
        """`seen` [n] bool: which tokens of the prompt the attention mask shows."""
        signals = placed.signals
        tokens = placed.rows[signals.content_rows]  # [N]
        visible = seen[tokens]
        is_marker = seen.clone()
        is_marker[: placed.start] = is_marker[placed.end :] = False
        is_marker[tokens] = False
        if not bool(visible.all()):
            signals = self._restricted(signals, visible)
        rows, ids = tokens[visible], self._prompt.ids
        first = tuple(self._prompt.positions[row, rows[0]].reshape(-1).tolist())
        said = None if ids is None else tuple(ids[row, instruction.rows].tolist())
        return Found(placed, signals, instruction, rows, is_marker.nonzero()[:, 0], first, said)

    def _restricted(self, signals: ImageSignals, visible: Tensor) -> ImageSignals:
        """Signals without the masked tokens; the same object for the same mask, so that beams share a state."""
        key = (id(signals), tuple(visible.tolist()))
        if key not in self._masked:
            self._masked[key] = signals.restricted(visible)
        return self._masked[key]

    def _positions(self, images: Sequence[tuple[Sample, Found]]) -> list[Tensor]:
        """The positions of the content tokens of each image [N] or [N, axes], on the device."""
        parts = [sample.positions[image.rows] for sample, image in images]
        return upload(parts, self._prompt.embeddings.device) if parts else []

    def _context(self, image: Found, positions: Tensor) -> ImageContext:
        settings = self._settings
        return ImageContext(image.signals, positions, image.instruction, settings.decoder, settings.text_tower)


def _in_prompt(found: Found, entered: Entered) -> ImageInPrompt:
    begun, placed = entered.begun, found.placed
    assert begun is not None, "all images have begun"
    image = ImageInPrompt(
        found.signals,
        replace(found.instruction),  # without the embeddings, which would occupy memory until the prefill ends
        begun.schedule,
        begun.budget,
        placed.start,
        placed.end,
        found.rows,
        markers=found.markers,
        missed=begun.missed,
        memory=entered.memory,
    )
    image.reductions.append((0, begun.outcome))
    return image


def _without_unseen(seen: Tensor, images: Sequence[PlacedSignals]) -> Tensor:
    """Which tokens of a prompt are seen [n] bool, without those whose patches the vision tower has not seen."""
    unseen = [image.rows[image.signals.unseen.cpu()] for image in images if image.signals.unseen is not None]
    return seen.index_fill(0, torch.cat(unseen), False) if unseen else seen
