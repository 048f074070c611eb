"""The architecture: a tiny but real LLaVA (CLIP tower with class token, projector, Llama decoder) and its CLIP."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from covist.tiny.scenes import GRID, IMAGE_SIZE, PATCH
from covist.tiny.text import CAPTION_LENGTH, END, IMAGE, PAD, START, TOKEN_ID, VOCABULARY


@dataclass(frozen=True)
class Size:
    """Widths and depths of an embedded model's parts; the defaults are those of the embedded weights.

    width: hidden size of the vision tower, of CLIP's text tower and of the LLaVA's decoder
    heads: attention heads of every part
    vision_layers, text_layers, decoder_layers: layers of vision tower, text tower and decoder
    decoder_mlp: width of the decoder's MLP
    decoder_width: hidden size of the LLaVA-NeXT's decoder
    """

    width: int = 128
    heads: int = 4
    vision_layers: int = 5
    text_layers: int = 3
    decoder_layers: int = 8
    decoder_mlp: int = 352
    decoder_width: int = 128


TOKEN_IDS: dict[str, Any] = {
    "bos_token_id": TOKEN_ID[START],
    "eos_token_id": TOKEN_ID[END],
    "pad_token_id": TOKEN_ID[PAD],
}


def vision_config(size: Size, image_size: int = IMAGE_SIZE) -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        projection_dim=size.width,
        num_hidden_layers=size.vision_layers,
        num_attention_heads=size.heads,
        image_size=image_size,
        patch_size=PATCH,
        hidden_act="gelu",
    )


def clip_config(size: Size) -> CLIPConfig:
    text = CLIPTextConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        projection_dim=size.width,
        num_hidden_layers=size.text_layers,
        num_attention_heads=size.heads,
        max_position_embeddings=CAPTION_LENGTH,
        hidden_act="gelu",
        **TOKEN_IDS,
    )
    return CLIPConfig(
        text_config=text.to_dict(), vision_config=vision_config(size).to_dict(), projection_dim=size.width
    )


def llava_config(size: Size) -> LlavaConfig:
    decoder = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size.width,
        intermediate_size=size.decoder_mlp,
        num_hidden_layers=size.decoder_layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        **TOKEN_IDS,
    )
    return LlavaConfig(
        vision_config=vision_config(size),
        text_config=decoder,
        image_token_index=TOKEN_ID[IMAGE],
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=GRID * GRID,
        tie_word_embeddings=False,
        **TOKEN_IDS,
    )


def position_waves(width: int, grid: int = GRID) -> torch.Tensor:
    """2-D sine-cosine position vectors of the patches, [grid * grid, width]."""
    frequencies = 100.0 ** -torch.linspace(0, 1, width // 4)
    angles = torch.arange(grid)[:, None] * frequencies  # [grid, width / 4]
    axis = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows, columns = axis[:, None].expand(-1, grid, -1), axis[None].expand(grid, -1, -1)
    return torch.cat([rows, columns], dim=2).reshape(grid * grid, width)


def place_positions(tower: CLIPVisionModel, scale: float = 0.3) -> None:
    """Initialise the patches' position embedding with sine waves, so that neighbours are similar from the start."""
    with torch.no_grad():
        table = tower.embeddings.position_embedding.weight
        table[1:] = scale * position_waves(table.shape[1])


def build_clip(size: Size, seed: int = 0) -> CLIPModel:
    torch.manual_seed(seed)
    clip = CLIPModel(clip_config(size))
    place_positions(clip.vision_model)
    return clip


def build_llava(size: Size, seed: int = 0) -> LlavaForConditionalGeneration:
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(llava_config(size))
    place_positions(model.model.vision_tower)
    return model
