"""What all compressed model classes share: images become rows, which carry their positions and weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)

from covist.families.text_tower import Home, TextTower
from covist.vllm.attention import StepColumns, WideAttention, columns_for, extend_rotary
from covist.vllm.decoder import ServedDecoder
from covist.vllm.images import ImageCompressor, ImageRequest, split_evenly
from covist.vllm.limits import position_room
from covist.vllm.positions import Placed, prompt_positions
from covist.vllm.rows import Side, side_columns
from covist.vllm.settings import PLACE, REQUEST, Serving, require_served_rule


class CompressedModel:
    """A mixin before a vLLM model class: overrides the embedding of images, the merging of rows and the positions.

    A subclass names the family that reads its tower (`served_family`) and defines how a batch of images is split.
    """

    served_family: ClassVar[Any]
    axes: ClassVar[int] = 1
    """Axes of the rotary positions."""
    config: Any
    language_model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        parent: Any = super()
        parent.__init__(vllm_config=vllm_config, prefix=prefix)
        self.serving = Serving.read(getattr(self.config, "covist", None))
        scheduler = vllm_config.scheduler_config
        self._tokens_at_once = scheduler.max_num_batched_tokens
        self._family = self._bind_family(vllm_config)
        module, text = self.language_model.model, self.config.get_text_config()
        self._decoder = ServedDecoder(module, text, _gather_heads)
        self._compressor = ImageCompressor(self.serving, self._decoder, module.embed_input_ids, self.axes)
        device, dtype = vllm_config.device_config.device, vllm_config.model_config.dtype
        self._side = torch.zeros(self._tokens_at_once, side_columns(self.axes), dtype=torch.float32, device=device)
        if self.serving.clip is not None:
            self._compressor.text_tower = TextTower.load(self.serving.clip, Home(device, dtype))
        self._widen_attention(vllm_config, device)
        self._weights_read = False

    def _bind_family(self, vllm_config: VllmConfig) -> Any:
        family = self.served_family(self)
        family.gather = tensor_model_parallel_all_gather
        family.exact_attention = False
        family.watch(self.serving.method.encoder_requests)
        return family

    def _widen_attention(self, vllm_config: VllmConfig, device: Any) -> None:
        """Give every layer the wide heads that the method's bias needs, if it has a bias."""
        layers, room = self._decoder.layers, position_room(vllm_config.model_config.max_model_len)
        for rotary in {id(one): one for one in map(self._rotary_of, range(layers))}.values():
            extend_rotary(rotary, room)
        rule = self.serving.method.attention_rule(self._decoder)
        require_served_rule(self.serving.method, rule)
        self._step: StepColumns | None = None
        if rule is None:
            return
        attentions = [self._decoder.attention_of(layer) for layer in range(layers)]
        columns = columns_for(attentions[0].attn, self.serving.columns)
        self._step = StepColumns(rule, columns, self._tokens_at_once, room, device)
        for attention in attentions:
            attention.attn = WideAttention(attention.attn, self._step, vllm_config)

    def _rotary_of(self, layer: int) -> Any:
        return self._decoder.attention_of(layer).rotary_emb

    # -- weights -----------------------------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        parent: Any = super()
        loaded = parent.load_weights(weights)
        self._read_weights()
        return loaded

    def _read_weights(self) -> None:
        """Set the gains of all heads, once the weights are loaded."""
        self._weights_read = True
        if self._step is None:
            return
        self._decoder.read_weights()
        rule = self.serving.method.attention_rule(self._decoder)
        assert rule is not None
        rank, world = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        for layer, gains in enumerate(rule.scale):
            wide = self._decoder.attention_of(layer).attn
            wide.scale.copy_(gains.chunk(world)[rank])

    # -- images ------------------------------------------------------------------------------------------------------

    def embed_multimodal(self, **kwargs: Any) -> Sequence[Tensor]:
        """[rows, d + side columns] for each image, in micro-batches: vLLM plans batches by the remaining rows."""
        parent: Any = super()
        if PLACE not in kwargs:  # a video, which is not compressed
            return [F.pad(span, (0, self._side.shape[1])) for span in parent.embed_multimodal(**kwargs)]
        rows: list[Tensor] = []
        for part in split_evenly(self.image_tokens(kwargs), self._tokens_at_once):
            arguments = self.part_of(kwargs, part)
            spans = [span.detach() for span in parent.embed_multimodal(**arguments)]
            signals = self._family.read(arguments, spans)
            for image, request in zip(signals, kwargs[REQUEST][part], strict=True):
                rows.append(self._compressor.rows(image, ImageRequest.unpack(request)))
        return rows

    def image_tokens(self, kwargs: dict[str, Any]) -> list[int]:
        """How many tokens each image of a batch has before compression."""
        raise NotImplementedError

    def part_of(self, kwargs: dict[str, Any], part: slice) -> dict[str, Any]:
        """The arguments of the tower for some images of a batch."""
        raise NotImplementedError

    # -- the decoder's input -----------------------------------------------------------------------------------------

    def embed_input_ids(
        self, input_ids: Tensor, multimodal_embeddings: Any = None, *, is_multimodal: Tensor | None = None
    ) -> Tensor:
        """Split the side columns from the rows of this step and store them for `forward`."""
        parent: Any = super()
        self._side.zero_()
        if multimodal_embeddings is None or len(multimodal_embeddings) == 0 or is_multimodal is None:
            return parent.embed_input_ids(input_ids, None, is_multimodal=is_multimodal)
        rows = torch.cat([*multimodal_embeddings])
        embeddings, side = rows.split([rows.shape[1] - self._side.shape[1], self._side.shape[1]], dim=1)
        self._side[: len(input_ids)][is_multimodal] = side.float()
        return parent.embed_input_ids(input_ids, (embeddings,), is_multimodal=is_multimodal)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if not self._weights_read:  # weights that were not loaded from a checkpoint
            self._read_weights()
        parent: Any = super()
        side = Side.unpack(self._side[: positions.shape[-1]])
        placed = positions[: self.axes].T + side.offsets  # [n, axes]
        if self._step is not None:
            self._step.write(placed, side)
        own = placed.T.contiguous() if self.axes > 1 else placed[:, 0].contiguous()
        return parent.forward(input_ids, own, intermediate_tensors, inputs_embeds, **kwargs)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """Positions of a prompt [3, n], and the shift of the generated tokens."""
        return prompt_positions(len(input_tokens), [self._placed(feature, input_tokens) for feature in mm_features])

    def _placed(self, feature: Any, prompt: list[int]) -> Placed:
        """The place of an image or video in the prompt; videos are not compressed."""
        first, length = feature.mm_position.offset, feature.mm_position.length
        if feature.modality == "image":
            return Placed(first, *feature.data[PLACE].data.tolist())
        alone = replace(feature, mm_position=replace(feature.mm_position, offset=0))
        parent: Any = super()
        positions, shift = parent.get_mrope_input_positions(prompt[first : first + length], [alone])
        return Placed(first, length, length + shift, positions)

    def get_mm_lora_token_counts(self, *, modality: str, mm_kwargs: Any, num_mm_embeds: int) -> tuple[int, int | None]:
        """Tokens that the tower and the projector compute: all tokens of the image."""
        parent: Any = super()
        whole = (
            num_mm_embeds
            if mm_kwargs is None
            else self.image_tokens({n: v.data[None] for n, v in mm_kwargs.items()})[0]
        )
        return parent.get_mm_lora_token_counts(modality=modality, mm_kwargs=mm_kwargs, num_mm_embeds=whole)


def _gather_heads(own: Tensor, heads: int) -> Tensor:
    """[heads of this rank, ...] -> [heads, ...]; with fewer key heads than ranks, neighbours have the same one."""
    world = get_tensor_model_parallel_world_size()
    if world == 1:
        return own
    joined = tensor_model_parallel_all_gather(own.contiguous(), 0)
    return joined[:: len(joined) // heads]
