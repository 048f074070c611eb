"""The prompts of a call: finds their images, pairs them with their signals and lets the method begin with each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import find_packed_sequence_indices

from covist.budget import Budget
from covist.contract.instruction import Instruction
from covist.contract.reading import readable_schedule
from covist.contract.signals import ImageSignals, KnownPrompt, PlacedSignals
from covist.contract.views import ImageContext
from covist.engine.allotment import Allotment, ages, token_count
from covist.engine.sequence.images import ImageInPrompt, Sample
from covist.engine.settings import CompressionSettings
from covist.errors import CovistError
from covist.reduction import Reduction
from covist.schedule import Schedule

PROBES = 8
"""Tokens of an image whose embeddings are compared with those in a prompt."""
UNKNOWN = (
    "the image features in this prompt did not come from this model's vision tower in this call (precomputed features "
    "and chunked prefill cannot be compressed); pass pixel_values to one call"
)


@dataclass(frozen=True)
class PromptBatch:
    """The prompts of a batch."""

    ids: Tensor | None  # [batch, n]
    is_image: Tensor  # [batch, n] bool
    embeddings: Tensor  # [batch, n, d]
    positions: Tensor  # [batch, n] or [batch, n, axes]
    valid: Tensor  # [batch, n] bool
    blocks: Tensor | None = None  # [batch, n] which of the prompts packed into a row a token belongs to, from 0 on

    def generated(self, row: int, image: ImageSignals) -> int:
        """How many of a row's last tokens were generated; a call without a cache sees them as part of the prompt.

        Encoded images remember the prompts that they came with. A prompt that is one token longer than when it was last
        seen continues it; any other is a new prompt about the same images, even if it begins with a known one.
        """
        tokens = self.embeddings[row] if self.ids is None else self.ids[row]
        for known in image.prompts:
            first = known.tokens
            if len(tokens) - known.seen in (0, 1) and torch.equal(first.to(tokens.device), tokens[: len(first)]):
                known.seen = len(tokens)
                return len(tokens) - len(first)
        image.prompts.append(KnownPrompt(tokens.clone(), len(tokens)))
        return 0

    def members(self) -> list[tuple[int, Tensor]]:
        """(row, its tokens [n] bool) of every prompt."""
        if self.blocks is None:
            return [(row, torch.ones_like(valid)) for row, valid in enumerate(self.valid)]
        return [(row, block == number) for row, block in enumerate(self.blocks) for number in range(int(block[-1]) + 1)]


def packed_prompts(kwargs: dict[str, Any]) -> Tensor | None:
    """The prompt of its row to which each token belongs [batch, n], if several are packed into a row.

    Like transformers, this looks for restarting positions only without a mask and without a cache. Multidimensional
    positions are judged by the text positions before the axes, and ignored without them.
    """
    positions = kwargs.get("position_ids")
    if positions is None or kwargs.get("attention_mask") is not None or kwargs.get("past_key_values") is not None:
        return None
    if positions.ndim == 3:
        if len(positions) != 4:
            return None
        positions = positions[0]
    embeddings = kwargs["inputs_embeds"]
    blocks = find_packed_sequence_indices(positions.expand(len(embeddings), -1))
    return None if blocks is None else blocks.to(embeddings.device)


@dataclass(frozen=True)
class _Found:
    """An image of a prompt before its first reduction."""

    placed: PlacedSignals
    context: ImageContext
    rows: Tensor  # [N] prompt rows of the content tokens that the mask shows
    markers: Tensor  # prompt rows of its markers


@dataclass(frozen=True)
class _Begun:
    """An image before the first layer; beams and repeated prompts share it."""

    budget: int
    schedule: Schedule
    outcome: Reduction
    missed: float | None


class ImageFinder:
    """The images of all prompts of a call."""

    def __init__(self, settings: CompressionSettings, prompt: PromptBatch, signals: Sequence[ImageSignals]):
        self._settings, self._prompt = settings, prompt
        self._allotment = Allotment(settings)
        self._begun: dict[Any, list[tuple[Tensor, _Begun]]] = {}
        self._masked: dict[Any, ImageSignals] = {}
        self._pieces = _placed(prompt, signals)

    def samples(self) -> list[Sample]:
        """Every prompt, packed or not, with its images after their first reduction."""
        found = zip(self._prompt.members(), self._pieces, strict=True)
        return [self._sample(row, member, pieces) for (row, member), pieces in found]

    def _sample(self, row: int, member: Tensor, pieces: list[PlacedSignals]) -> Sample:
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
        found: list[_Found] = []
        for number, image in enumerate(images):
            if not bool(seen[image.rows[image.signals.content_rows]].any()):
                continue  # a fully masked image is ignored
            after = images[turns.first_of_turn(images, number)].end
            if after not in instructions:
                instructions[after] = reader.read(ids, is_text, after, prompt.embeddings[row], turns)
            found.append(self._found(row, image, seen, instructions[after]))
        shown = [one.placed for one in found]
        budgets = self._allotment.budgets([one.context for one in found], partial(ages, turns, shown))
        while found:  # what a method knows about an image goes with its context
            sample.images.append(self._image(found.pop(0), budgets.pop(0)))
        return sample

    def _found(self, row: int, placed: PlacedSignals, seen: Tensor, instruction: Instruction) -> _Found:
        """`seen` [n] bool: which tokens of the prompt the attention mask shows."""
        signals = placed.signals
        tokens = placed.rows[signals.content_rows.to(placed.rows.device)]  # [N]
        visible = seen[tokens]
        is_marker = seen.clone()
        is_marker[: placed.start] = is_marker[placed.end :] = False
        is_marker[tokens] = False
        if not bool(visible.all()):
            signals = self._restricted(signals, visible)
        rows = tokens[visible]
        settings, positions = self._settings, self._prompt.positions[row][rows]
        context = ImageContext(signals, positions, instruction, settings.decoder, settings.text_tower)
        return _Found(placed, context, rows, is_marker.nonzero()[:, 0])

    def _image(self, found: _Found, budget: Budget) -> ImageInPrompt:
        context, placed = found.context, found.placed
        begun = self._beginning(context, budget)
        # Later stages read the rows; a copy of the embeddings would occupy memory until the prefill ends.
        instruction = replace(context.instruction, embeddings=context.instruction.embeddings.new_empty(0, 0))
        image = ImageInPrompt(
            context.signals,
            instruction,
            begun.schedule,
            begun.budget,
            placed.start,
            placed.end,
            found.rows,
            markers=found.markers,
            missed=begun.missed,
            memory=self._settings.method.memory(context),
        )
        image.reductions.append((0, begun.outcome))
        return image

    def _restricted(self, signals: ImageSignals, visible: Tensor) -> ImageSignals:
        """Signals without the masked tokens; the same object for the same mask, so that beams share a state."""
        key = (id(signals), tuple(visible.tolist()))
        if key not in self._masked:
            self._masked[key] = signals.restricted(visible.to(signals.content.device))
        return self._masked[key]

    # -- the first reduction -------------------------------------------------------------------------------------------

    def _beginning(self, image: ImageContext, budget: Budget) -> _Begun:
        """Begin once per image, instruction and budget: beams and repeated prompts share the state."""
        asked = image.instruction
        key = (id(image.signals), asked.text, tuple(image.positions[0].reshape(-1).tolist()), budget)
        for embeddings, begun in self._begun.get(key, []):
            if embeddings.shape == asked.embeddings.shape and torch.equal(embeddings, asked.embeddings):
                return begun
        begun = self._begin(image, budget)
        self._begun.setdefault(key, []).append((asked.embeddings, begun))
        return begun

    def _begin(self, image: ImageContext, budget: Budget) -> _Begun:
        """Reduce an image to its budget, or keep all tokens if their coverage would be too low."""
        begun = self._reduced(image, token_count(self._settings, image, budget))
        coverage, least = begun.outcome.coverage, self._settings.min_coverage
        if least is None or coverage is None or coverage >= least:
            return begun
        return replace(self._reduced(image, image.grid.size), missed=coverage)

    def _reduced(self, image: ImageContext, budget: int) -> _Begun:
        method = self._settings.method
        schedule = readable_schedule(method, self._settings.decoder, budget, image.grid.size)
        outcome = image.held or method.begin(image, schedule.tokens_per_layer[0])
        return _Begun(budget, schedule, outcome, None)


def _without_unseen(seen: Tensor, images: Sequence[PlacedSignals]) -> Tensor:
    """Which tokens of a prompt are seen [n] bool, without those whose patches the vision tower has not seen."""
    unseen = [
        image.rows[image.signals.unseen.to(image.rows.device)] for image in images if image.signals.unseen is not None
    ]
    return seen.index_fill(0, torch.cat(unseen), False) if unseen else seen


# -- which image stands where ------------------------------------------------------------------------------------------


def _placed(prompt: PromptBatch, signals: Sequence[ImageSignals]) -> list[list[PlacedSignals]]:
    """The images of every prompt, in order; each takes as many visual tokens as it has, even with text between them.

    Images mostly come in prompt order, so this order is tried first, and all of it is checked by one comparison.
    """
    visual = [(row, (prompt.is_image[row] & member).nonzero().squeeze(1)) for row, member in prompt.members()]
    found = _in_order(prompt, signals, visual)
    if found is None:
        found = [_searched(prompt, signals, row, tokens) for row, tokens in visual]
    placed = []
    for images, (_, tokens) in zip(found, visual, strict=True):
        pieces: list[PlacedSignals] = []
        rows = tokens.split([len(image.content) for image in images])
        for image, image_rows in zip(images, rows, strict=True):
            pieces.append(PlacedSignals.after(pieces, image, image_rows))
        placed.append(pieces)
    return placed


def _in_order(
    prompt: PromptBatch, signals: Sequence[ImageSignals], visual: Sequence[tuple[int, Tensor]]
) -> list[list[ImageSignals]] | None:
    """The images if every prompt shows the next ones, beginning anew after the last; else None."""
    waiting, found, here, ours = deque(signals), [], [], []
    for row, tokens in visual:
        images: list[ImageSignals] = []
        place = 0
        while place < len(tokens):
            if not waiting:
                return None
            image = waiting[0]
            waiting.rotate(-1)
            rows = tokens[place : place + len(image.content)]
            if len(rows) < len(image.content):
                return None
            probes = _probes(image, rows.device)
            here.append(prompt.embeddings[row, rows[probes]])
            ours.append(image.span[probes.to(image.span.device)].to(prompt.embeddings))
            images.append(image)
            place += len(rows)
        found.append(images)
    return found if not here or _same(torch.cat(here), torch.cat(ours)) else None


def _searched(prompt: PromptBatch, signals: Sequence[ImageSignals], row: int, tokens: Tensor) -> list[ImageSignals]:
    """The images of one prompt, each compared with all signals; one that was tried moves to the end."""
    waiting, found, place = deque(signals), [], 0
    while place < len(tokens):
        for _ in range(len(waiting)):
            image = waiting[0]
            waiting.rotate(-1)
            if stands_in(image, prompt.embeddings[row], tokens[place : place + len(image.content)]):
                break
        else:
            raise CovistError(UNKNOWN)
        found.append(image)
        place += len(image.content)
    return found


def stands_in(image: ImageSignals, embeddings: Tensor, rows: Tensor) -> bool:
    """Whether the rows [n] of a prompt [length, d] hold an image's embeddings (a few of them are compared)."""
    if len(rows) != len(image.content):
        return False
    probes = _probes(image, rows.device)
    return _same(embeddings[rows[probes]], image.span[probes.to(image.span.device)].to(embeddings))


def _probes(image: ImageSignals, device: torch.device) -> Tensor:
    """Some places of the span; of an image that was encoded in part, of its content, which alone tells it apart."""
    places = torch.arange(len(image.content)) if image.unseen is None else image.content_rows
    return places[torch.linspace(0, len(places) - 1, min(PROBES, len(places))).long()].to(device)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, even where they are not numbers: a broken image is still the image."""
    return bool(((one == other) | (one != one) & (other != other)).all())
