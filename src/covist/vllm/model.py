"""What all compressed model classes share: images become rows, which carry their positions and weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.models.utils import StageMissingLayer
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    PlaceholderRange,
)

from covist.contract.signals import ImageSignals
from covist.errors import CovistError
from covist.families.text_tower import Home, TextTower
from covist.vllm.attention import StepColumns, columns_for, extend_rotary
from covist.vllm.decoder import ServedDecoder
from covist.vllm.images import ImageCompressor, embedding_signals, split_evenly
from covist.vllm.item import ImageRequest, Item, argument_of, remaining_positions
from covist.vllm.limits import position_room
from covist.vllm.rows import Side, side_columns, whole_rows
from covist.vllm.settings import ANY_DECODER, ITEM, Serving, require_served_rule
from covist.vllm.tower import ReadTower, embeddings_of
from covist.vllm.wide_attention import biasable_layers, recorded_arguments, widen_layer

TOWER = re.compile(r"^(model\.)?vision_tower\.(?!vision_model\.)")


class CompressedModel:
    """A mixin before a vLLM model class: overrides the embedding of images, the merging of rows and the positions."""

    model_config: Any
    language_model: Any
    _tower_model_names: list[str]

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        parent: Any = super()
        with recorded_arguments() as arguments:
            parent.__init__(vllm_config=vllm_config, prefix=prefix)
        config, device = vllm_config.model_config.hf_config, vllm_config.device_config.device
        self.serving = Serving.of(config)
        self._tokens_at_once = vllm_config.scheduler_config.max_num_batched_tokens
        self._width = vllm_config.model_config.get_hidden_size()
        columns = side_columns(self.serving.axes)
        self._side = torch.zeros(self._tokens_at_once, columns, dtype=torch.float32, device=device)
        self._tower: ReadTower | None = None
        self._decoder: Any = ANY_DECODER
        if not self.serving.reads_embeddings:
            self._read_tower(vllm_config)
        self._compressor = ImageCompressor(self.serving.method, self._decoder, self._embed_text)
        if self.serving.clip is not None:
            home = Home(device, vllm_config.model_config.dtype)
            self._compressor.text_tower = TextTower.load(self.serving.clip, home)
        self._prepare_attention(arguments, vllm_config, device)
        if self.serving.axes == 1 and hasattr(self, "model_config"):
            self.model_config = _WithOneAxis(self.model_config)  # the Transformers backend asks it in every step

    def _read_tower(self, vllm_config: VllmConfig) -> None:
        """Let transformers' vision tower take the place of vLLM's."""
        self._tower = ReadTower(vllm_config, self.serving.method.encoder_requests)
        rotary = self._tower.family.decoder.rotary_emb
        self._decoder = ServedDecoder(self.language_model.model, rotary, _gather_heads)
        for name in self._tower_model_names:  # so that vLLM does not load its weights
            setattr(self, name, StageMissingLayer("vision tower", getattr(self, name).to("meta")))

    def _prepare_attention(self, arguments: dict[int, Any], vllm_config: VllmConfig, device: Any) -> None:
        """Give the decoder positions that reach far enough, and the wide heads that the method's bias needs."""
        room, method = position_room(vllm_config.model_config.max_model_len), self.serving.method
        module: Any = self
        if self.serving.axes > 1 or method.positions == "keep":
            for rotary in {id(one): one for one in module.modules() if hasattr(one, "cos_sin_cache")}.values():
                extend_rotary(rotary, room)
        rule = method.attention_rule(self._decoder)
        require_served_rule(method, rule)
        self._step: StepColumns | None = None
        self._wide: list[Any] = []
        if rule is None:
            return
        self._wide = biasable_layers(vllm_config)
        columns = columns_for(self._wide, self.serving.columns)
        self._step = StepColumns(rule, columns, self._tokens_at_once, room, device)
        for layer in self._wide:
            widen_layer(layer, arguments[id(layer)], self._step, vllm_config)

    # -- weights -----------------------------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """With the part of the tower's name that transformers 5.22 and later omit when saving."""
        parent: Any = super()
        if hasattr(getattr(self, "vision_tower", None), "vision_model"):
            weights = ((TOWER.sub(r"\1vision_tower.vision_model.", name), tensor) for name, tensor in weights)
        return parent.load_weights(weights)

    def _read_weights(self) -> None:
        """Set the gains of all heads, once the weights are loaded."""
        self._decoder.read_weights()
        rule = self.serving.method.attention_rule(self._decoder)
        assert rule is not None, "there are wide heads"
        rank, world = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        for layer, gains in zip(self._wide, rule.scale, strict=True):
            layer.scale.copy_(gains.chunk(world)[rank])
        self._wide = []

    # -- images ------------------------------------------------------------------------------------------------------

    def embed_multimodal(self, **kwargs: Any) -> Sequence[Tensor]:
        """[rows, d + side columns] for each item, in micro-batches: vLLM plans batches by the remaining rows."""
        parent: Any = super()
        if ITEM not in kwargs:  # sound, which is not compressed
            return [F.pad(span, (0, self._side.shape[1])) for span in parent.embed_multimodal(**kwargs)]
        items, rows = [Item.unpack(packed) for packed in kwargs.pop(ITEM)], list[Tensor]()
        for part in split_evenly([int(item.embeds.sum()) for item in items], self._tokens_at_once):
            arguments, own = argument_of(kwargs, items, part), items[part]
            for index, (item, (span, signals)) in enumerate(zip(own, self._encoded(own, arguments), strict=True)):
                offsets = self._offsets(item, arguments, index)
                rows.append(self._rows(item, self._with_structure(item, span), offsets, signals))
        return rows

    def _encoded(self, items: Sequence[Item], arguments: dict[str, Any]) -> list[tuple[Tensor, list[ImageSignals]]]:
        """The embeddings of each item [n, d], and the signals of its parts if the tower is read."""
        if self._tower is None:
            parent: Any = super()
            return [(span.detach(), []) for span in parent.embed_multimodal(**arguments)]
        signals = iter(self._tower.encode(items[0].modality, arguments))
        of_items = [[next(signals) for _ in item.parts] for item in items]
        return [(embeddings_of(own), own) for own in of_items]

    def _with_structure(self, item: Item, span: Tensor) -> Tensor:
        """All rows of an item [n, d], from its embeddings: text between them has embeddings of its own."""
        embeds = item.embeds[item.inside].to(span.device)
        if len(span) != int(embeds.sum()):
            raise CovistError(f"vLLM made {len(span)} embeddings of a {item.modality} with {int(embeds.sum())} places")
        if bool(embeds.all()):
            return span
        ids = torch.tensor(item.ids[item.inside], device=span.device)
        texts = self._embed_text(ids[~embeds]).to(span)
        rows = span.new_zeros(len(embeds), span.shape[1])
        rows[embeds], rows[~embeds, : texts.shape[1]] = span, texts
        return rows

    def _rows(self, item: Item, span: Tensor, offsets: Tensor, signals: list[ImageSignals]) -> Tensor:
        """The rows of an item: `span` [n, d] at `offsets` [n, axes], with the signals of its parts if there are any."""
        if item.is_whole:
            return whole_rows(span, offsets)
        content = item.embeds[item.inside].to(span.device)
        if item.newlines:
            newline: Any = getattr(self, "image_newline")  # noqa: B009
            content = content & (span != newline.to(span)).any(-1)
        made, before, request = list[Tensor](), 0, ImageRequest(**item.question)
        lengths = [part.length for part in item.parts]
        pieces = zip(item.parts, span.split(lengths), content.split(lengths), offsets.split(lengths), strict=True)
        for number, (part, rows, is_content, own_offsets) in enumerate(pieces):
            own = embedding_signals(rows, is_content, self._width, part.frames)
            if signals:
                own = replace(signals[number], span=own.span, content=is_content)
            grid = own_offsets if self.serving.axes > 1 else None
            made.append(self._compressor.rows(own, part.count, request, before, grid))
            before += part.positions
        return torch.cat(made)

    def _offsets(self, item: Item, arguments: dict[str, Any], index: int) -> Tensor:
        """Positions of an item's rows before compression, relative to its first embedding, [n, axes]."""
        device = self._side.device
        if self.serving.axes == 1:
            return torch.arange(item.length, device=device)[:, None]
        data = {
            name: MultiModalFieldElem(value[index], MultiModalBatchedField())
            for name, value in arguments.items()
            if name not in item.fields
        }
        place = PlaceholderRange(offset=0, length=len(item.ids), is_embed=item.embeds)
        feature = MultiModalFeatureSpec(MultiModalKwargsItem(data), item.modality, "", place)
        parent: Any = super()
        positions, _ = parent.get_mrope_input_positions(item.ids, [feature])
        inside = positions[:, item.inside].T.to(device)
        return inside - inside[0]

    def _embed_text(self, ids: Tensor) -> Tensor:
        model: Any = self
        return model.get_language_model().embed_input_ids(ids)

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
        if self._wide and self._tower is not None:  # the first call after weights were loaded
            self._read_weights()
        parent: Any = super()
        side = Side.unpack(self._side[: positions.shape[-1]])
        placed = positions[: self.serving.axes].T + side.offsets  # [n, axes]
        if self._step is not None:
            self._step.write(placed, side)
        own = placed.T.contiguous() if self.serving.axes > 1 else placed[:, 0].contiguous()
        return parent.forward(input_ids, own, intermediate_tensors, inputs_embeds, **kwargs)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """Positions of a prompt [axes, n], and the shift of the generated tokens.

        The model's own class says where the tokens of the uncompressed prompt stand.
        """
        whole, features, placed, place = list[int](), list[Any](), list[tuple[int, Item]](), 0
        for feature in sorted(mm_features, key=lambda feature: feature.mm_position.offset):
            at, packed = feature.mm_position, (feature.data or {}).get(ITEM)
            whole += input_tokens[place : at.offset]
            start, place = len(whole), at.offset + at.length
            if packed is None:
                features.append(replace(feature, mm_position=replace(at, offset=start)))
                whole += input_tokens[at.offset : place]
                continue
            item = Item.unpack(packed.data)
            own = PlaceholderRange(offset=start, length=len(item.ids), is_embed=item.embeds)
            features.append(replace(feature, mm_position=own))
            placed.append((start, item))
            whole += item.ids
        whole += input_tokens[place:]
        if self.serving.axes == 1:
            return remaining_positions(torch.arange(len(whole)).expand(3, -1), 0, placed, one_axis=True)
        parent: Any = super()
        positions, delta = parent.get_mrope_input_positions(whole, features)
        return remaining_positions(positions, delta, placed, one_axis=False)

    def get_mm_lora_token_counts(self, *, modality: str, mm_kwargs: Any, num_mm_embeds: int) -> tuple[int, int | None]:
        """Tokens that the tower and the projector compute: all tokens of the image."""
        parent: Any = super()
        packed = (mm_kwargs or {}).get(ITEM)
        whole = num_mm_embeds if packed is None else int(Item.unpack(packed.data).embeds.sum())
        return parent.get_mm_lora_token_counts(modality=modality, mm_kwargs=mm_kwargs, num_mm_embeds=whole)

    def get_encoder_cudagraph_config(self) -> Any:
        """No graphs: they would bypass the reduction of images."""
        parent: Any = super()
        return replace(parent.get_encoder_cudagraph_config(), modalities=[])


class _WithOneAxis:
    """A model's configuration that says that positions have one axis, whatever vLLM must believe."""

    uses_mrope = False

    def __init__(self, config: Any):
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def _gather_heads(own: Tensor, heads: int) -> Tensor:
    """[heads of this rank, ...] -> [heads, ...]; with fewer key heads than ranks, neighbours have the same one."""
    world = get_tensor_model_parallel_world_size()
    if world == 1:
        return own
    joined = tensor_model_parallel_all_gather(own.contiguous(), 0)
    return joined[:: len(joined) // heads]
