"""Requests on their way into vLLM: how many places an image takes in the prompt, and the question about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import PromptReplacement, PromptUpdateDetails

from covist.budget import Budget
from covist.contract.family import Family
from covist.engine.question import InstructionReader, Turns
from covist.vllm.images import ImageRequest
from covist.vllm.limits import require_room
from covist.vllm.rows import occupied_positions
from covist.vllm.settings import BUDGET, PLACE, REQUEST, UNCOMPRESSED, Serving, read_budget

IMAGE = "image"


@dataclass(frozen=True)
class Extent:
    """The size of an image before compression.

    content: tokens that may be removed
    markers: tokens between them that are kept
    positions: the positions that it takes, whatever remains of it, if positions form a grid
    """

    content: int
    markers: int = 0
    positions: int | None = None


@dataclass
class ReducedImage(PromptUpdateDetails):
    """The places of an image in the prompt, and how many positions they take."""

    positions: int = 0


class _Span(NamedTuple):
    start: int
    end: int


class CompressedProcessor:
    """A mixin before a vLLM processor class: images take as many places as their budgets allow.

    Data of single images is passed as `REQUEST` among the options of the Hugging Face processor, which never sees it. A
    subclass defines the size of images.
    """

    served_family: ClassVar[type[Family]]
    info: Any

    def extents(self, processed: Mapping[str, Any]) -> list[Extent]:
        """The sizes of the images that the Hugging Face processor has prepared."""
        raise NotImplementedError

    @cached_property
    def _serving(self) -> Serving:
        return Serving.read(getattr(self.info.get_hf_config(), "covist", None))

    # -- requests ----------------------------------------------------------------------------------------------------

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        budget, options = read_budget(inputs.hf_processor_mm_kwargs)
        count = inputs.mm_data_items.get_count(IMAGE, strict=False)
        if self._serving.instruction:
            requests = [replace(request, budget=budget) for request in self._asked(inputs.prompt, count)]
        else:
            requests = [ImageRequest(budget)] * count
        parent: Any = super()
        return parent.apply(replace(inputs, hf_processor_mm_kwargs={**options, REQUEST: requests}), timing_ctx)

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """The largest possible request: one without compression."""
        parent: Any = super()
        return replace(parent.get_dummy_inputs(*args, **kwargs), hf_processor_mm_kwargs={BUDGET: UNCOMPRESSED})

    def _asked(self, prompt: list[int], count: int) -> list[ImageRequest]:
        """The question about each image of a prompt, in which an image is still one token."""
        ids = torch.tensor(prompt)
        is_image = ids == self._image_token
        spans = [_Span(row, row + 1) for row in is_image.nonzero()[:, 0].tolist()]
        if len(spans) != count:  # vLLM refuses such prompts with a better message
            return [ImageRequest()] * count
        turns = self._reader.turns(ids, ~is_image)
        firsts = [spans[turns.first_of_turn(spans, number)].end for number in range(count)]
        requests = {end: self._asked_after(ids, ~is_image, end, turns) for end in dict.fromkeys(firsts)}
        return [requests[end] for end in firsts]

    def _asked_after(self, ids: Tensor, is_text: Tensor, end: int, turns: Turns) -> ImageRequest:
        """The question about the images of a turn whose first one ends before row `end`."""
        instruction = self._reader.read(ids, is_text, end, torch.empty(len(ids), 0), turns)
        tokens, pieces = ids[instruction.rows].tolist(), instruction.pieces
        return ImageRequest(text=instruction.text, tokens=tuple(tokens), pieces=tuple(pieces))

    @cached_property
    def _reader(self) -> InstructionReader:
        return InstructionReader(self.served_family, self.info.get_hf_processor(), override=None)

    @cached_property
    def _image_token(self) -> int:
        config = self.info.get_hf_config()
        return getattr(config, "image_token_id", None) or config.image_token_index

    # -- caches: with another budget or question, an image has another cache key -------------------------------------

    def _get_mm_hashes(self, inputs: Any) -> Any:
        requests, options = _split(inputs.hf_processor_mm_kwargs)
        parent: Any = super()
        hashes = parent._get_mm_hashes(replace(inputs, hf_processor_mm_kwargs=options))
        if IMAGE in hashes:
            named = zip(hashes[IMAGE], requests, strict=True)
            hashes[IMAGE] = [request.identify(own) for own, request in named]
        return hashes

    def _get_cache_missing_processor_kwargs(self, inputs: Any, mm_is_cached: Mapping[str, list[bool]]) -> Any:
        requests, options = _split(inputs.hf_processor_mm_kwargs)
        parent: Any = super()
        options = parent._get_cache_missing_processor_kwargs(
            replace(inputs, hf_processor_mm_kwargs=options), mm_is_cached
        )
        cached = mm_is_cached.get(IMAGE, [])
        return {**options, REQUEST: [one for one, known in zip(requests, cached, strict=True) if not known]}

    # -- what the Hugging Face processor prepares --------------------------------------------------------------------

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Any) -> Any:
        requests, options = _split(hf_kwargs)
        parent: Any = super()
        processed = parent._apply_hf_processor_main(mm_items, options)
        if requests:
            extents = zip(self.extents(processed), requests, strict=True)
            processed[REQUEST] = [request.pack() for request in requests]
            processed[PLACE] = torch.tensor([self._place(extent, request.budget) for extent, request in extents])
        return processed

    def _place(self, extent: Extent, budget: Budget | None) -> tuple[int, int]:
        """The remaining rows of an image, and the positions that they take."""
        count = self._serving.count(budget, extent.content)
        rows, length = count + extent.markers, extent.content + extent.markers
        if extent.positions is not None:
            return rows, extent.positions
        return rows, occupied_positions(self._serving.method, length, rows, count)

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> Any:
        parent: Any = super()
        own = dict.fromkeys((REQUEST, PLACE), MultiModalFieldConfig.batched(IMAGE, keep_on_cpu=True))
        return {**parent._get_mm_fields_config(hf_inputs, _split(hf_processor_mm_kwargs)[1]), **own}

    # -- the prompt --------------------------------------------------------------------------------------------------

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Any:
        parent: Any = super()
        updates = parent._get_prompt_updates(mm_items, _split(hf_processor_mm_kwargs)[1], out_mm_kwargs)
        return [self._shortened(update, out_mm_kwargs) if update.modality == IMAGE else update for update in updates]

    def _shortened(self, update: PromptReplacement, prepared: Any) -> PromptReplacement:
        def replacement(item: int) -> ReducedImage:
            rows, positions = prepared[IMAGE][item][PLACE].data.tolist()
            return ReducedImage([self._image_token] * rows, positions=positions)

        return replace(update, replacement=replacement)

    def _maybe_apply_prompt_updates(self, mm_items: Any, mm_res: Any) -> Any:
        images: Sequence[Any] = [update.content for (update,) in mm_res.prompt_updates.get(IMAGE, ())]
        shift = sum(image.positions - len(image.full) for image in images)
        require_room(shift, self.info.ctx.model_config.max_model_len)
        parent: Any = super()
        return parent._maybe_apply_prompt_updates(mm_items, mm_res)


def _split(options: Mapping[str, Any]) -> tuple[list[ImageRequest], dict[str, Any]]:
    """The requests of the images, and the options of the Hugging Face processor."""
    return options.get(REQUEST, []), {name: value for name, value in options.items() if name != REQUEST}
