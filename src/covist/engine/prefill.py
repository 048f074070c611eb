"""One prefill under compression: images become states, and states shrink on their way through the decoder."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from covist.contract.decoder import Rotary
from covist.contract.instruction import Instruction
from covist.contract.signals import ImageSignals, PlacedSignals
from covist.contract.views import DecoderView, ImageContext
from covist.engine.beginning import Beginning, begin_image
from covist.engine.certify import bound_of
from covist.engine.ledger import Ledger
from covist.engine.prompt import Prompt
from covist.engine.sequence import Batch, ImageInPrompt, Sample
from covist.engine.settings import Settings
from covist.errors import CovistError


@dataclass
class Prefill:
    """Carries the batch from stage to stage; the handle's hooks call it at the decoder's entry and at each layer."""

    settings: Settings
    batch: Batch
    ledger: Ledger
    rows: dict[int, list[Tensor]]  # first layer of a stage -> the prompt rows of each sample, in order of depth
    right_padded: bool = False
    observed: dict[int, Tensor] = field(default_factory=dict)  # layer -> the padded hidden states that entered it
    seconds: float = 0.0
    host_bytes: int = 0  # kept for later questions
    asked_again: bool = False  # whether a later question chose the tokens of images of earlier turns

    @classmethod
    def begin(cls, settings: Settings, prompt: Prompt, signals: list[ImageSignals]) -> tuple[Prefill, Tensor]:
        """Reduce every image before the first layer; returns the compressed embeddings [batch, width, d]."""
        started = perf_counter()
        finder = _ImageFinder(settings, prompt, signals)
        batch = Batch([finder.sample(row, member) for row, member in prompt.members()])
        for sample in batch.samples:
            for image in sample.images if settings.certify else ():
                image.attention_bound = bound_of(settings, sample, image)
            sample.drop_removed()
        rows = [sample.embeddings[sample.rows] for sample in batch.samples]
        embeddings = batch.write_states(0, rows)
        prefill = cls(
            settings,
            batch,
            batch.ledger(settings.method),
            rows={0: [sample.rows for sample in batch.samples]},
            right_padded=not bool(prompt.valid[:, -1].all()),
        )
        prefill.seconds = perf_counter() - started
        return prefill, embeddings

    @property
    def images(self) -> list[ImageInPrompt]:
        return [image for sample in self.batch.samples for image in sample.images]

    @property
    def depths(self) -> set[int]:
        """Layers before which some image shrinks, the decoder's entry excluded."""
        return {depth for image in self.images for depth, _ in image.schedule.stages if depth > 0}

    @property
    def cache_cut_from(self) -> int | None:
        """First layer whose cache is cut to the survivors; None leaves all caches unchanged."""
        first = (image.schedule.cache_cut_from for image in self.images)
        return min((layer for layer in first if layer is not None), default=None)

    @property
    def last_cut(self) -> int:
        """The depth of the last reduction; 0 if there is none inside the decoder."""
        return max(self.rows)

    def observe(self, layer: int, hidden: Tensor) -> None:
        """Keep the input of a layer if a later reduction reads it."""
        if any(depth > layer and self.settings.method.observed_layer(depth) == layer for depth in self.depths):
            self.observed[layer] = hidden

    def follow(self, layer: int, given: Tensor, made: Tensor) -> None:
        """Record how a block of a layer changed its input [batch, width, d], if the method follows blocks."""
        method, home = self.settings.method, self.ledger.positions.device
        for index, sample in enumerate(self.batch.samples if method.follows_blocks else ()):
            for image in sample.images:
                if image.follows(layer):
                    rows = sample.places(image.kept_rows)
                    own = [self.batch.unpad(states.to(home), index)[rows] for states in (given, made)]
                    image.add_change(method.change(*own))

    def add_companions(self, layer: int, hidden: Tensor) -> Tensor:
        """Hidden states [batch, width, d] with the companions that the representatives receive before `layer`."""
        if not any(layer in image.state.companions for image in self.images):
            return hidden
        hidden = hidden.clone()
        for index, sample in enumerate(self.batch.samples):
            own = self.batch.unpad(hidden, index)
            for image in sample.images:
                if layer in image.state.companions:
                    own[sample.places(image.kept_rows).to(own.device)] += image.state.companions[layer].to(own)
        return hidden

    def reduce(self, depth: int, hidden: Tensor, rotary: Rotary) -> Tensor:
        """Reduce the images that are due before layer `depth`; returns the shorter hidden states."""
        started = perf_counter()
        layer = self.settings.method.observed_layer(depth)
        observed = self.observed.pop(layer, hidden)
        home, device = self.ledger.positions.device, hidden.device  # the decoder may be spread over devices
        hidden, observed, rotary = hidden.to(home), observed.to(home), (rotary[0].to(home), rotary[1].to(home))
        shorter = []
        for index, sample in enumerate(self.batch.samples):
            own = [self.batch.unpad(states, index) for states in (hidden, observed, *rotary, self.ledger.positions)]
            for image in sample.images:
                count = dict(image.schedule.stages).get(depth, image.state.count)
                if count < image.state.count or self.settings.method.measures_only:
                    view = self._view(depth, layer, sample, image, *own)
                    state = image.state.entering(depth, own[0][view.visual])
                    image.outcomes.append((depth, self.settings.method.reduce(state, view, count)))
            before = sample.rows
            sample.drop_removed()
            shorter.append(own[0][torch.searchsorted(before, sample.rows)])
        states = self.batch.write_states(depth, shorter)
        self.ledger = self.batch.ledger(self.settings.method)
        self.rows[depth] = [sample.rows for sample in self.batch.samples]
        self.seconds += perf_counter() - started
        return states.to(device)

    def columns_of_survivors(self, layer: int, length: int) -> Tensor:
        """[batch, kept]: survivors of the last stage, as columns of the `length` keys in the cache of `layer`."""
        rows = self.rows[max(depth for depth in self.rows if depth <= layer)]
        new = [
            torch.searchsorted(then, sample.rows) + length - len(then)
            for then, sample in zip(rows, self.batch.samples, strict=True)
        ]
        earlier_turns = torch.arange(length - max(len(then) for then in rows), device=new[0].device)
        return torch.cat([earlier_turns.expand(len(new), -1), self.batch.pad(new)], dim=1)

    def _view(
        self,
        depth: int,
        layer: int,
        sample: Sample,
        image: ImageInPrompt,
        hidden: Tensor,
        observed: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
    ) -> DecoderView:
        text = sample.text_after(image)
        prompt = slice(len(hidden) - sample.generated)
        return DecoderView(
            depth=depth,
            decoder=self.settings.decoder,
            hidden=hidden[prompt],
            observed=observed[prompt],
            observed_layer=layer,
            positions=positions[prompt],
            rotary=(cos[prompt], sin[prompt]),
            visual=sample.places(image.kept_rows),
            text=text,
            text_embeddings=sample.embeddings[sample.rows[text]],
            instruction_rows=sample.places(image.instruction.rows),
            last_instruction_row=int(sample.places(torch.tensor([image.instruction.last], device=sample.rows.device))),
            signals=image.signals,
            change=None if image.change is None else image.change[image.state.indices],
        )


class _ImageFinder:
    """Finds the images of a prompt, pairs them with their signals and lets the method begin with each."""

    def __init__(self, settings: Settings, prompt: Prompt, signals: list[ImageSignals]):
        self._settings, self._prompt, self._signals = settings, prompt, signals
        self._begun: dict[Any, list[tuple[Tensor, Beginning]]] = {}
        self._masked: dict[Any, ImageSignals] = {}

    def sample(self, row: int, member: Tensor) -> Sample:
        """The prompt whose tokens `member` [n] bool marks in a row of the batch."""
        prompt = self._prompt
        seen = prompt.valid[row] & member
        ids = None if prompt.ids is None else prompt.ids[row]
        images = self._images(row, member, ids)
        generated = self._generated(row, images)
        sample = Sample(
            seen.nonzero().squeeze(1), prompt.positions[row], prompt.embeddings[row], generated=generated, source=row
        )
        is_text = seen & ~prompt.is_image[row]
        is_text[len(is_text) - generated :] = False
        for image in images:
            is_text[image.start : image.end] = False
        reader = self._settings.reader
        turns = reader.turns(ids, is_text)
        latest = reader.latest_turn(ids, turns) if self._settings.reselect else 0
        instructions: dict[int, Instruction] = {}  # by the row after which the question begins
        for number, image in enumerate(images):
            if not bool(seen[image.rows[image.signals.content_rows]].any()):
                continue  # a fully masked image is ignored
            asked = max(images[turns.first_of_turn(images, number)].end, latest)
            if asked not in instructions:
                instructions[asked] = reader.read(ids, is_text, asked, prompt.embeddings[row], turns)
            sample.images.append(self._begin(row, image, seen, instructions[asked]))
        return sample

    def _generated(self, row: int, images: list[PlacedSignals]) -> int:
        """How many of the last tokens were generated; a forward call without a cache sees them as part of the prompt.

        Encoded images remember the prompts that they came with. Tokens that begin with such a prompt continue it; any
        others are a new prompt about the same images.
        """
        prompt = self._prompt
        own = prompt.embeddings[row] if prompt.ids is None else prompt.ids[row]
        generated = []
        for image in images:
            known: list[Tensor] = image.signals.memo.setdefault("prompts", [])
            before = [len(first) for first in known if torch.equal(first, own[: len(first)])]
            if not before:
                known.append(own.clone())
            generated.append(len(own) - min(before, default=len(own)))
        return max(generated, default=0)

    def _images(self, row: int, member: Tensor, ids: Tensor | None) -> list[PlacedSignals]:
        """The images of a prompt, in order. Each takes as many visual tokens as it has, even with text between them."""
        tokens = (self._prompt.is_image[row] & member).nonzero().squeeze(1)
        pieces: list[PlacedSignals] = []
        place, waiting = 0, deque(self._signals)
        while place < len(tokens):
            signals = self._next(waiting, row, tokens[place:])
            pieces.append(PlacedSignals.after(pieces, signals, tokens[place : place + len(signals.content)]))
            place += len(signals.content)
        return self._settings.family.images_in(pieces, ids)

    def _next(self, waiting: deque[ImageSignals], row: int, tokens: Tensor) -> ImageSignals:
        """The signals of the image that begins with the first of the visual `tokens`.

        Signals mostly come in prompt order, so each one that was tried moves to the end and the next is tried first.
        """
        for _ in range(len(waiting)):
            signals = waiting[0]
            waiting.rotate(-1)
            if signals.stands_in(self._prompt.embeddings[row], tokens[: len(signals.content)]):
                return signals
        raise CovistError(
            "the image features in this prompt did not come from this model's vision tower in this call "
            "(precomputed features and chunked prefill cannot be compressed); pass pixel_values to one call"
        )

    def _begin(self, row: int, placed: PlacedSignals, seen: Tensor, instruction: Instruction) -> ImageInPrompt:
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
        begun = self._beginning(signals, instruction, self._prompt.positions[row][rows])
        # Later stages read the rows; a copy of the embeddings would occupy memory until the prefill ends.
        instruction = replace(instruction, embeddings=instruction.embeddings.new_empty(0, 0))
        image = ImageInPrompt(
            signals,
            instruction,
            begun.schedule,
            begun.budget,
            placed.start,
            placed.end,
            rows,
            markers=is_marker.nonzero()[:, 0],
            missed=begun.missed,
        )
        image.outcomes.append((0, begun.outcome))
        return image

    def _restricted(self, signals: ImageSignals, visible: Tensor) -> ImageSignals:
        """Signals without the masked tokens; the same object for the same mask, so that beams share a state."""
        key = (id(signals), tuple(visible.tolist()))
        if key not in self._masked:
            self._masked[key] = signals.restricted(visible.to(signals.content.device))
        return self._masked[key]

    def _beginning(self, signals: ImageSignals, instruction: Instruction, positions: Tensor) -> Beginning:
        """Begin once per image and instruction: beams and repeated prompts share the state."""
        key = (id(signals), instruction.text, tuple(positions[0].reshape(-1).tolist()))
        for embeddings, begun in self._begun.get(key, []):
            if embeddings.shape == instruction.embeddings.shape and torch.equal(embeddings, instruction.embeddings):
                return begun
        settings = self._settings
        context = ImageContext(signals, positions, instruction, settings.decoder, settings.text_tower)
        begun = begin_image(settings, context)
        self._begun.setdefault(key, []).append((instruction.embeddings, begun))
        return begun
