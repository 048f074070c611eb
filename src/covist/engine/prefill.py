"""A prefill: images become states, and states shrink on their way through the decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from covist.backends import Attended
from covist.checks import checked_together
from covist.contract.decoder import Rotary
from covist.contract.signals import ImageSignals
from covist.contract.views import BlockView, DecoderView
from covist.engine.attention.interface import AttentionCall, distance_biases
from covist.engine.attention.mask import StageAttention
from covist.engine.passes import Pass, Stage, handed, without_autocast
from covist.engine.sequence.batch import Batch
from covist.engine.sequence.cache import Book, quantised_classes
from covist.engine.sequence.finder import ImageFinder
from covist.engine.sequence.host import HostCopies, upload
from covist.engine.sequence.images import ImageInPrompt, Sample
from covist.engine.sequence.ledger import Ledger
from covist.engine.sequence.prompts import PromptBatch, packed_prompts
from covist.engine.settings import CompressionSettings
from covist.errors import CovistError

NOT_GATHERED = ("inputs_embeds", "input_ids", "attention_mask", "position_ids", "past_key_values")
"""Arguments of the text model that are not simply cut to the tokens that are left."""


class Prefill(Pass):
    """A call with images."""

    batch: Batch  # the current sequences

    def __init__(self, settings: CompressionSettings, is_image: Tensor, host: HostCopies):
        """`is_image` [batch, n] bool: visual tokens of the call; `host`: what was read of it already."""
        super().__init__(settings)
        self._is_image, self._host = is_image, host
        self.signals: Sequence[ImageSignals] = ()  # whose features the call may have brought
        self.samples: list[Sample] = []
        self.seconds = 0.0
        self.right_padded = False
        self._ledgers: dict[int, Ledger] = {}  # first layer of a stage -> the keys of its cache
        self._batches: dict[int, Batch] = {}  # first layer of a stage -> the sequences that entered it
        self._observed: dict[int, tuple[Tensor, Rotary | None]] = {}  # what entered a layer that a reduction reads

    # -- before the first layer ----------------------------------------------------------------------------------------

    def prepare(self, module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        prompt = self._prompt(arguments)
        self._length = prompt.embeddings.shape[1]
        self.right_padded = prompt.right_padded
        self.settings.rules.follow()
        started = perf_counter()
        with torch.no_grad(), without_autocast(prompt.embeddings), checked_together():
            self.samples = ImageFinder(self.settings, prompt, self.signals).samples()
        self.batch = Batch(self.samples, self.settings.method)
        self._check_cache()
        embeddings = self.batch.enter(prompt.embeddings)
        self.seconds = perf_counter() - started
        text = self._text_before(prompt, self.padding_mask(arguments))
        self._past = {
            number: text if self.book is None else self.book.ledger(number) for number in range(len(module.layers))
        }
        stage = self._open_stage(0, embeddings)
        positions, stage.positions = stage.positions, None  # the text model itself places what enters it
        assert positions is not None
        gathered = self._gathered(arguments, prompt, module.config)
        entering = {**gathered, "inputs_embeds": embeddings, "position_ids": handed(positions)}
        if self.cache is None and entering.get("attention_mask") is None:
            # Without a mask, transformers would take gaps between positions for borders of packed prompts.
            entering["attention_mask"] = torch.ones(prompt.valid.shape, dtype=torch.long, device=embeddings.device)
        return entering

    def _prompt(self, arguments: dict[str, Any]) -> PromptBatch:
        embeddings, width = arguments["inputs_embeds"], arguments["inputs_embeds"].shape[:2]
        given = (self.ids, self.padding_mask(arguments), arguments.get("position_ids"))
        ids, mask, positions = self._host.read(*given)
        valid = torch.ones(width, dtype=torch.bool) if mask is None else mask[:, -width[1] :] != 0
        return PromptBatch(
            ids=ids,
            is_image=self._is_image,
            embeddings=embeddings,
            positions=self.positions(positions, width, valid.device),
            valid=valid,
            blocks=packed_prompts({**arguments, "position_ids": positions}),
        )

    def _check_cache(self) -> None:
        """Refuse what a cache of this kind cannot do, before anything is written into it."""
        kind, name = type(self.cache).__name__, self.settings.method.name
        if self.room is not None:
            self._check_room(kind, name, self.room)
        cuts = any(image.schedule.cache_cut_from is not None for image in self.images)
        if cuts and any(isinstance(layer, quantised_classes()) for layer in self.layers.values()):
            raise CovistError(f"{name} removes keys that a {kind} has already quantised; omit `cache_implementation`")

    def _check_room(self, kind: str, name: str, room: int) -> None:
        """Refuse what a static cache cannot hold."""
        if self.depths:
            raise CovistError(
                f"{name} reduces images inside the decoder, so layers hold different numbers of keys, which a {kind} "
                "cannot do; omit `cache_implementation`, or choose a method that acts before the decoder"
            )
        if any(True for layer in self.settings.family.decoder.layers for _ in distance_biases(layer)):
            raise CovistError(f"layers that count distances between tokens need a dynamic cache, not a {kind}")
        held = self.seen if self.book is None else self.book.stages[0].length
        if held + self.batch.width > room:
            raise CovistError(
                f"the {kind} has room for {room} keys, but the prompt is left with {held + self.batch.width}; "
                "make it larger"
            )

    def _text_before(self, prompt: PromptBatch, mask: Tensor | None) -> Ledger | None:
        """The ledger of a cache that was filled without compression: text tokens before the prompt."""
        if self.seen == 0:
            return None
        valid = torch.ones(len(prompt.valid), self.seen, dtype=torch.bool, device=prompt.embeddings.device)
        if mask is not None:
            valid = mask[:, : self.seen].to(valid.device) != 0
        positions = (valid.cumsum(1) - 1).clamp(min=0)
        if prompt.positions.ndim == 3:
            positions = positions[..., None].expand(-1, -1, prompt.positions.shape[-1])
        return Ledger.of_text(positions, valid)

    def _gathered(self, arguments: Mapping[str, Any], prompt: PromptBatch, config: Any) -> dict[str, Any]:
        """Arguments that hold something for every token, for the tokens that are left; companions are taken out."""
        width, taken = prompt.embeddings.shape[:2], self.settings.family.companion_arguments

        def left(name: str, value: Any) -> Any:
            if name in taken:
                return None
            per_token = isinstance(value, Tensor) and value.ndim >= 2 and value.shape[:2] == width
            if not per_token or name in NOT_GATHERED:
                return value
            some = value.flatten(0, 1)[self.batch.flat_rows.clamp(min=0).to(value.device)]
            return self._after_another_text(some, config.eos_token_id) if name.endswith("input_ids") else some

        return {name: left(name, value) for name, value in arguments.items()}

    def _after_another_text(self, ids: Tensor, end: int | Sequence[int] | None) -> Tensor:
        """Ids [batch, width] whose padding is the end of a text, for layers that read what stands before a token."""
        end, valid = next(iter(end), None) if isinstance(end, Sequence) else end, self.stages[0].valid
        assert valid is not None, "a prefill knows its padding"
        return ids if end is None else ids.masked_fill(~valid.to(ids.device), end)

    def begin_layers(self) -> None:
        # The text model has computed its rotary embeddings by now, which may have changed the frequencies.
        self.stages[0].attend = self._attention(self._ledgers[0], self.width[1])

    def _attention(self, ledger: Ledger, queries: int) -> Callable[[AttentionCall], Attended]:
        return StageAttention(ledger, queries, self.settings.rule, self.batch.sources).attend

    # -- on the way through the layers ---------------------------------------------------------------------------------

    @property
    def images(self) -> list[ImageInPrompt]:
        return [image for sample in self.samples for image in sample.images]

    @property
    def depths(self) -> set[int]:
        """Layers before which some image shrinks, the decoder's entry excluded."""
        return {depth for image in self.images for depth, _ in image.schedule.stages if depth > 0}

    def before_layer(self, index: int, hidden: Tensor, rotary: Any) -> Tensor:
        hidden = self._add_companions(index, hidden)
        if index > 0:
            due = index in self.depths
            if due:
                with without_autocast(hidden):
                    hidden = self._reduce(index, hidden, self.rotary(index, hidden, rotary))
            if due or self._past[index] is not self._past[index - 1]:
                self._open_stage(index, hidden)
        method = self.settings.method
        if any(depth > index and method.observed_layer(depth) == index for depth in self.depths):
            self._observed[index] = hidden, self.rotary(index, hidden, rotary)
        return hidden

    def _open_stage(self, depth: int, hidden: Tensor) -> Stage:
        """The layers from `depth` on attend to this prefill's keys, after those that their cache held before."""
        queries = hidden.shape[1]
        made = self.batch.ledger(self.seen)
        past = self._past[depth]
        self._ledgers[depth] = ledger = made if past is None else past.concat(made)
        self._batches[depth] = self.batch
        stage = self.stages[depth] = Stage(
            self._attention(ledger, queries),
            ledger,
            self.batch.sources,
            positions=ledger.joined.positions[:, ledger.length - queries :],
            columns=self.batch.columns_in(self._batches[0]) if depth else None,
            valid=made.joined.valid,
            padded=made.padded,
        )
        return stage

    def _add_companions(self, layer: int, hidden: Tensor) -> Tensor:
        """Hidden states [batch, width, d] with the companions that the representatives receive before `layer`."""
        if not any(layer in image.state.companions for image in self.images):
            return hidden
        due = [image for image in self.images if layer in image.state.companions]
        places = torch.cat([self.batch.places(image) for image in due])
        companions = torch.cat([image.state.companions[layer] for image in due])
        added = hidden.flatten(0, 1).index_add(0, places.to(hidden.device), companions.to(hidden))
        return added.view_as(hidden)

    def _reduce(self, depth: int, hidden: Tensor, rotary: Rotary | None) -> Tensor:
        """Reduce the images that are due before layer `depth`; returns the shorter hidden states."""
        started, method = perf_counter(), self.settings.method
        layer = method.observed_layer(depth)
        observed, turned = self._observed.pop(layer, (hidden, rotary))
        current = next(reversed(self._ledgers.values())).joined
        positions = current.positions[:, current.count - hidden.shape[1] :]
        home, device = positions.device, hidden.device  # the decoder may be spread over devices
        hidden, observed = hidden.to(home), observed.to(home)
        turned = None if turned is None else (turned[0].to(home), turned[1].to(home))
        before = self.batch
        for index, sample in enumerate(self.samples):
            states, seen, places = (self.batch.unpad(one, index) for one in (hidden, observed, positions))
            angles = (
                None if turned is None else (self.batch.unpad(turned[0], index), self.batch.unpad(turned[1], index))
            )
            for image in sample.images:
                count = dict(image.schedule.stages).get(depth, image.state.count)
                if method.is_due(count, image.state.count):
                    view = self._view(depth, layer, index, image, states, seen, places, angles)
                    state = image.state.entering(depth, states[view.visual])
                    image.reductions.append((depth, method.reduce(state, view, count)))
        self.batch = Batch(self.samples, method)
        if any(was and not left for was, left in zip(before.lengths, self.batch.lengths, strict=True)):
            raise CovistError(
                f"{method.name} leaves no visual token from layer {depth} on, and the prompt has no text: ask "
                "something, or choose another method"
            )
        result = self.batch.shorten(depth, before, hidden)
        self.seconds += perf_counter() - started
        return result.to(device)

    def _view(
        self,
        depth: int,
        layer: int,
        index: int,
        image: ImageInPrompt,
        hidden: Tensor,
        observed: Tensor,
        positions: Tensor,
        rotary: Rotary | None,
    ) -> DecoderView:
        sample = self.samples[index]
        prompt = slice(len(hidden) - sample.generated)
        after, asked = sample.text_after(image), image.instruction
        rows, text, instruction = upload(
            [after, self.batch.before(index, after), self.batch.before(index, asked.rows)], hidden.device
        )
        return DecoderView(
            depth=depth,
            decoder=self.settings.decoder,
            hidden=hidden[prompt],
            observed=observed[prompt],
            observed_layer=layer,
            positions=positions[prompt],
            rotary=None if rotary is None else (rotary[0][prompt], rotary[1][prompt]),
            visual=self.batch.columns(index, image),
            text=text,
            text_embeddings=sample.embeddings[rows],
            instruction_rows=instruction,
            last_instruction_row=max(0, int(self.batch.before(index, torch.tensor(asked.last + 1))) - 1),
            signals=image.signals,
            memory=image.memory,
        )

    def show_block(self, layer: int, given: Tensor, made: Tensor) -> None:
        """Show a method that watches blocks what one was given and made, [batch, width, d] each."""
        method = self.settings.method
        for image in self.images if method.watches_blocks else ():
            rows = self.batch.places(image).to(given.device)
            states = [one.flatten(0, 1)[rows] for one in (given, made)]
            method.see_block(image.memory, BlockView(layer, image.schedule, image.state.indices, *states))

    # -- after the last layer ------------------------------------------------------------------------------------------

    def finish(self, output: Any) -> Any:
        if self.layers:
            self._cut_caches()
            book = Book(self._ledgers, self.seen + self._length, self.settings.rule, self.right_padded)
            self._write_down(book, self.settings.family.decoder)
        output.last_hidden_state = self.batch.restore_rows(output.last_hidden_state, self._length)
        if self.images and self.settings.finished is not None:
            self.settings.finished(self)
        return output

    def _cut_caches(self) -> None:
        """Leave in earlier caches only what the last reduction left, from the layer on that the schedules name."""
        last = max(self._ledgers)
        named = (image.schedule.cache_cut_from for image in self.images)
        first = min((layer for layer in named if layer is not None), default=last)
        if first >= last:
            return
        opened = max(depth for depth in self._ledgers if depth <= first)
        self._ledgers[first], self._batches[first] = self._ledgers[opened], self._batches[opened]
        self._ledgers = dict(sorted(self._ledgers.items()))
        made = self.batch.ledger(self.seen)
        for start, end in pairwise(self._ledgers):
            if start >= first:
                seen, past = self._ledgers[start], self._past[start]
                entered = self._batches[start]
                earlier_turns = torch.arange(seen.length - entered.width, device=entered.rows.device)
                left = self.batch.columns_in(entered) + len(earlier_turns)
                columns = torch.cat([earlier_turns.expand(len(left), -1), left], dim=1)
                for number in self.layers.keys() & range(start, end):
                    self.layers[number].take(columns)
                self._ledgers[start] = (made if past is None else past.concat(made)).rotated_as(seen, columns)
