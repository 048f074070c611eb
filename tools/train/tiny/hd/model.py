"""The architecture of the second test bed: a LLaVA-NeXT of 16 narrow layers with a tower like the first bed's."""

from math import isqrt, pi
from typing import Any

import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
)
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from covist.tiny.hd.scenes import HD_SIDE
from covist.tiny.model import TOKEN_IDS, Size, vision_config
from covist.tiny.scenes import PATCH
from covist.tiny.text import CHAT_TEMPLATE, IMAGE, TOKEN_ID, VOCABULARY, build_tokenizer
from train.tiny.hd.views import GRID, TILE_SIDE, VIEW_GRID

NEXT_SIZE = Size(decoder_width=96, decoder_layers=16, decoder_mlp=256)
# The second rotary frequency of heads of 24 turns once per row of the joined tiles, including the newline. So the
# column of a patch, which the tower cannot know across tiles, can be read from its position. Slower frequencies are
# left to content.
ROPE_THETA = ((GRID + 1) / (2 * pi)) ** 12


def next_config(size: Size) -> LlavaNextConfig:
    decoder = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size.decoder_width,
        intermediate_size=size.decoder_mlp,
        num_hidden_layers=size.decoder_layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
        **TOKEN_IDS,
    )
    return LlavaNextConfig(
        vision_config=vision_config(size, TILE_SIDE),
        text_config=decoder,
        image_token_index=TOKEN_ID[IMAGE],
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_grid_pinpoints=[[HD_SIDE, HD_SIDE]],
        image_seq_length=VIEW_GRID * VIEW_GRID,
        tie_word_embeddings=False,
        **TOKEN_IDS,
    )


def build_next(size: Size = NEXT_SIZE, seed: int = 0) -> LlavaNextForConditionalGeneration:
    torch.manual_seed(seed)
    return LlavaNextForConditionalGeneration(next_config(size))


def grow(half: LlavaNextForConditionalGeneration, whole: LlavaNextForConditionalGeneration) -> None:
    """Copy the decoder of `half`, which has half the layers, into `whole`; every second layer at first adds nothing."""
    whole.lm_head.load_state_dict(half.lm_head.state_dict())
    old, new = half.model.language_model, whole.model.language_model
    new.embed_tokens.load_state_dict(old.embed_tokens.state_dict())
    new.norm.load_state_dict(old.norm.state_dict())
    for number, layer in enumerate(old.layers):
        new.layers[2 * number].load_state_dict(layer.state_dict())
        added = new.layers[2 * number + 1]
        torch.nn.init.zeros_(added.self_attn.o_proj.weight)
        torch.nn.init.zeros_(added.mlp.down_proj.weight)


def shrink_clip(clip: CLIPModel) -> CLIPModel:
    """A CLIP for smaller images with the weights of `clip`; its patches keep the positions of the upper left corner."""
    state: dict[str, Any] = dict(clip.state_dict())
    name = "vision_model.embeddings.position_embedding.weight"
    side = isqrt(len(state[name]) - 1)
    patches = state[name][1:].view(side, side, -1)[:VIEW_GRID, :VIEW_GRID].flatten(0, 1)
    state[name] = torch.cat([state[name][:1], patches])
    state.pop("vision_model.embeddings.position_ids", None)
    config: Any = CLIPConfig.from_dict(clip.config.to_dict())
    config.vision_config.image_size = TILE_SIDE
    small = CLIPModel(config)
    small.load_state_dict(state)
    return small


def build_next_processor() -> LlavaNextProcessor:
    side = {"height": TILE_SIDE, "width": TILE_SIDE}
    image_processor = LlavaNextImageProcessorPil(
        size=side,
        crop_size=side,
        do_center_crop=False,
        image_mean=[0.5] * 3,
        image_std=[0.25] * 3,
        image_grid_pinpoints=[[HD_SIDE, HD_SIDE]],
    )
    return LlavaNextProcessor(
        image_processor=image_processor,
        tokenizer=build_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the class token, which "default" drops
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )
