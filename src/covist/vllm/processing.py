"""Requests on their way into vLLM: how many places images and videos take in the prompt, and the question about them.

One processor serves every model. vLLM's own says which tokens stand for an item; they are counted, and shortened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalSharedField,
)
from vllm.multimodal.processing import PromptUpdateDetails

from covist.checks import require_affordable
from covist.engine.question import InstructionReader
from covist.errors import CovistError
from covist.families.video import segments
from covist.vllm.item import ImageRequest, Item, Part, part_lengths, runs_of
from covist.vllm.limits import require_room
from covist.vllm.rows import occupied_positions
from covist.vllm.settings import BUDGET, ITEM, MODALITIES, REQUESTS, UNCOMPRESSED, Serving, read_budget
from covist.vllm.tower import family_read

IMAGE, VIDEO = "image", "video"
PIXELS, GRIDS = "pixel_values_videos", ("image_grid_thw", "video_grid_thw")
Requests = dict[str, list[ImageRequest]]


class _Span(NamedTuple):
    start: int
    end: int


class CompressedProcessor:
    """A mixin before a vLLM processor class: images and videos take as many places as their budgets allow.

    Requests of single items are passed as `REQUESTS` among the options of the Hugging Face processor, which never sees
    them.
    """

    info: Any

    @cached_property
    def _serving(self) -> Serving:
        return Serving.of(self._config)

    @property
    def _config(self) -> Any:
        return self.info.ctx.model_config.hf_config

    # -- requests ----------------------------------------------------------------------------------------------------

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        budget, options = read_budget(inputs.hf_processor_mm_kwargs)
        counts = inputs.mm_data_items.get_all_counts()
        requests = {modality: [ImageRequest(budget)] * counts[modality] for modality in counts}
        if self._serving.instruction and IMAGE in requests:
            asked = self._asked(inputs.prompt, counts[IMAGE])
            requests[IMAGE] = [replace(request, budget=budget) for request in asked]
        parent: Any = super()
        return parent.apply(replace(inputs, hf_processor_mm_kwargs={**options, REQUESTS: requests}), timing_ctx)

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """The largest possible request: one without compression."""
        parent: Any = super()
        return replace(parent.get_dummy_inputs(*args, **kwargs), hf_processor_mm_kwargs={BUDGET: UNCOMPRESSED})

    def _asked(self, prompt: list[int], count: int) -> list[ImageRequest]:
        """The question about each image of a prompt, in which an image is still one token."""
        config, ids = self._config, torch.tensor(prompt)
        is_image = ids == (getattr(config, "image_token_id", None) or config.image_token_index)
        spans = [_Span(row, row + 1) for row in is_image.nonzero()[:, 0].tolist()]
        if len(spans) != count:  # vLLM refuses such prompts with a better message
            return [ImageRequest()] * count
        reader, turns = self._reader, self._reader.turns(ids, ~is_image)
        ends = [spans[turns.first_of_turn(spans, number)].end for number in range(count)]
        nothing = torch.empty(len(ids), 0)
        by_turn = {end: reader.read(ids, ~is_image, end, nothing, turns) for end in dict.fromkeys(ends)}
        asked = [by_turn[end] for end in ends]
        return [ImageRequest(text=one.text, tokens=ids[one.rows].tolist(), pieces=one.pieces) for one in asked]

    @cached_property
    def _reader(self) -> InstructionReader:
        family = family_read(self._config, self._config.architectures[0])
        assert family is not None, "`require_readable` refuses the instruction for other models"
        return InstructionReader(family, self.info.get_hf_processor(), override=None)

    # -- caches: with another budget or question, an image has another cache key -------------------------------------

    def _get_mm_hashes(self, inputs: Any) -> Any:
        requests, options = _split(inputs.hf_processor_mm_kwargs)
        parent: Any = super()
        hashes = parent._get_mm_hashes(replace(inputs, hf_processor_mm_kwargs=options))
        return {
            modality: [request.identify(own) for own, request in zip(hashes[modality], requests[modality], strict=True)]
            for modality in hashes
        }

    def _get_cache_missing_processor_kwargs(self, inputs: Any, mm_is_cached: Mapping[str, list[bool]]) -> Any:
        requests, options = _split(inputs.hf_processor_mm_kwargs)
        parent: Any = super()
        options = parent._get_cache_missing_processor_kwargs(
            replace(inputs, hf_processor_mm_kwargs=options), mm_is_cached
        )
        missing = {
            modality: [one for one, known in zip(requests[modality], cached, strict=True) if not known]
            for modality, cached in mm_is_cached.items()
        }
        return {**options, REQUESTS: missing}

    # -- what the Hugging Face processor prepares --------------------------------------------------------------------

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Any) -> Any:
        parent: Any = super()
        return parent._apply_hf_processor_main(mm_items, _split(hf_kwargs)[1])

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> Any:
        parent: Any = super()
        return parent._get_mm_fields_config(hf_inputs, _split(hf_processor_mm_kwargs)[1])

    # -- the prompt --------------------------------------------------------------------------------------------------

    def _get_mm_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Any:
        requests, options = _split(hf_processor_mm_kwargs)
        parent: Any = super()
        updates = parent._get_mm_prompt_updates(mm_items, options, out_mm_kwargs)
        return {
            modality: [
                self._shortened(modality, *of_item)
                for of_item in zip(items, out_mm_kwargs[modality], requests[modality], strict=True)
            ]
            if items and modality in MODALITIES
            else items
            for modality, items in updates.items()
        }

    def _shortened(self, modality: str, updates: Sequence[Any], prepared: Any, request: ImageRequest) -> list[Any]:
        """The updates of an item with as many places as remain; what the model must know enters `prepared`."""
        content = updates[0].content
        if any(update.content.full != content.full for update in updates):
            raise CovistError(f"vLLM has several forms of this {modality}; it cannot be compressed")
        embeds = content.is_embed and content.is_embed(content.full)
        embeds = torch.ones(len(content.full), dtype=torch.bool) if embeds is None else embeds.bool()
        newlines = newlines_in(self.info, modality, prepared)
        parts = self._parts(modality, embeds, newlines, prepared, request)
        question = {"text": request.text, "tokens": request.tokens, "pieces": request.pieces}
        fields = {name: kind for name, element in prepared.items() if (kind := _kind(element)) is not None}
        runs, asked = runs_of(content.full, embeds), question if request.text else {}
        item = Item(modality, runs, parts, newlines, asked, fields)
        prepared[ITEM] = MultiModalFieldElem(item.pack(), MultiModalBatchedField(keep_on_cpu=True))
        taken = item.positions if self._serving.axes == 1 else _extent(item, prepared)
        return [update.with_content(ReducedItem(item, taken - item.rows)) for update in updates]

    def _parts(self, modality: str, embeds: Tensor, newlines: int, prepared: Any, request: ImageRequest) -> list[Part]:
        """An image as a whole, a video in segments, as everywhere in covist."""
        method, content = self._serving.method, int(embeds.sum()) - newlines
        frames = _frames(prepared, content) if modality == VIDEO else 1
        budget = request.budget or self._serving.budget
        films = segments(frames, content // frames)
        tokens = [len(film) * content // frames for film in films]
        parts = []
        for film, own, length in zip(films, tokens, part_lengths(embeds, tokens), strict=True):
            count = budget.count_for(own, len(film))
            if count < own:  # here a request is refused; in a worker it would stop the engine
                require_affordable(method.name, own)
            positions = occupied_positions(method, length, length - own + count, count)
            parts.append(Part(length, own, count, positions, len(film)))
        return parts

    def _maybe_apply_prompt_updates(self, mm_items: Any, mm_res: Any) -> Any:
        model = self.info.ctx.model_config
        contents = [update.content for of_items in mm_res.prompt_updates.values() for (update, *_) in of_items]
        require_room(sum(getattr(content, "shift", 0) for content in contents), model.max_model_len)
        parent: Any = super()
        return parent._maybe_apply_prompt_updates(mm_items, mm_res)


class ReducedItem(PromptUpdateDetails):
    """The places of an item in the prompt, and how many positions more they take."""

    def __init__(self, item: Item, shift: int):
        super().__init__(item.short_ids, item.is_row)
        self.shift = shift


def newlines_in(info: Any, modality: str, prepared: Any) -> int:
    """How many embeddings of an item mark the end of a row of tiles or of a video (LLaVA-NeXT, LLaVA-OneVision)."""
    if modality == VIDEO:
        return int(hasattr(info, "_get_num_frame_tokens") and hasattr(info, "_get_num_unpadded_features"))
    if not hasattr(info, "_get_num_unpadded_features") or "image_sizes" not in prepared:
        return 0
    height, width = map(int, prepared["image_sizes"].data)
    encoder, pinpoints = info.get_vision_encoder_info(), info.get_hf_config().image_grid_pinpoints
    rows, columns = get_anyres_image_grid_shape((height, width), pinpoints, encoder.get_image_size())
    _, newlines = info._get_num_unpadded_features(
        original_height=height,
        original_width=width,
        npatches=encoder.get_patch_grid_length(),
        num_patch_height=rows,
        num_patch_width=columns,
    )
    return newlines


def _frames(prepared: Any, content: int) -> int:
    """How many frames of equally many tokens a video has; 1 if nothing tells."""
    if (grid := _grid(prepared)) is not None:
        frames = int(grid[:, 0].sum())
    else:
        frames = len(prepared[PIXELS].data) if PIXELS in prepared else 1
    return frames if content % frames == 0 else 1


def _extent(item: Item, prepared: Any) -> int:
    """The most positions that an item can take on an axis of a grid."""
    grid = _grid(prepared)
    return item.length if grid is None else min(item.length, int((grid[:, 0] * grid[:, 1:].amax(1)).sum()))


def _grid(prepared: Any) -> Tensor | None:
    """Frames, rows and columns of an item's patches, [n, 3]."""
    return next((prepared[name].data.view(-1, 3) for name in GRIDS if name in prepared), None)


def _kind(element: Any) -> Sequence[int] | None:
    """How an argument of the encoder is made of those of single items; see `Item.fields`."""
    if isinstance(element.field, MultiModalSharedField):
        return ()
    if isinstance(element.field, MultiModalFlatField):
        dimension = element.field.dim % element.data.ndim
        return dimension, element.data.shape[dimension]
    return None


def _split(options: Mapping[str, Any]) -> tuple[Requests, dict[str, Any]]:
    """The requests of the items, and the options of the Hugging Face processor."""
    return options.get(REQUESTS, {}), {name: value for name, value in options.items() if name != REQUESTS}
