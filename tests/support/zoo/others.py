"""Classes whose images arrive in a way of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from support.zoo.entry import FUSED, NO_ATTENTION, QUERIES, Entry
from support.zoo.films import frames_of, pooled_frames
from support.zoo.tiny import IMAGE, OPENING, VOCABULARY
from support.zoo.visual import Seeds, flat, noise, packed, shape_of, square, strip

HYBRID = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 3, 3],
    },
}
MERGED = {"text": HYBRID, "vision": {"insert_layer_id": 0}, "more": {"insert_layer_id": 0}}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2}
GEMMA = {**ALTERNATING, "head_dim": 8, "global_head_dim": 8}  # logits are not scaled: wide heads magnify rounding
PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}


def positioned(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Patches with their places, padded to the most: [images, patches, values] (Gemma 4)."""
    vision = config.vision_config
    side = getattr(vision, "model_patch_size", vision.patch_size)
    shapes = [shape_of(seed) for seed in flat(seeds)]
    most = max(h * w for h, w in shapes)
    pixels = torch.zeros(len(shapes), most, 3 * side**2)
    places = torch.full((len(shapes), most, 2), -1)
    for index, (seed, (h, w)) in enumerate(zip(flat(seeds), shapes, strict=True)):
        pixels[index, : h * w] = noise(seed, h * w, 3 * side**2)
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        places[index, : h * w] = torch.stack([columns.flatten(), rows.flatten()], -1)
    return {"pixel_values": pixels, "image_position_ids": places}


def pooled(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Crops as patches, and which patches become one token (Molmo2): an overview and one crop of it."""
    vision = config.vision_config
    side = vision.image_size[0] // vision.patch_size
    corner = torch.arange(side * side).view(side // 2, 2, side // 2, 2).permute(0, 2, 1, 3).reshape(-1, 4)
    count, crop = len(flat(seeds)), side * side
    pixels = torch.cat([noise(seed, 2, crop, 3 * vision.patch_size**2) for seed in flat(seeds)])
    pooling = torch.cat([corner + crop * index for index in range(2 * count)])
    grids = torch.tensor([[side // 2, side // 2, side // 2, side // 2]] * count)
    return {"pixel_values": pixels, "image_token_pooling": pooling, "image_grids": grids}


def bare_patches(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Patches that enter the decoder without a tower: [images, patches, values] (Fuyu)."""
    return {"pixel_values": torch.stack([noise(seed, 16, 3 * config.patch_size**2) for seed in flat(seeds)])}


def cubes(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """One token per large patch of two frames (Inkling)."""
    vision = config.vision_config
    size = (16, vision.temporal_patch_size, vision.patch_size, vision.patch_size, 3)
    return {"pixel_values": torch.cat([noise(seed, *size) for seed in flat(seeds)])}


def coded(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Images that become entries of a codebook (Emu3)."""
    return {**square(config, seeds, side=16), "image_sizes": torch.tensor([[16, 16]] * len(flat(seeds)))}


def with_crops(config: Any, seeds: Seeds) -> dict[str, Any]:
    """An overview of every image, and local crops of every second one."""
    vision = config.vision_config
    side = getattr(vision, "image_size", None) or vision.sam_config.image_size
    local = [2 * (seed % 2) for seed in flat(seeds)]
    crops = [noise(seed + 50, count, 3, side, side) for seed, count in zip(flat(seeds), local, strict=True)]
    arguments: dict[str, Any] = square(config, seeds, side=side)
    if sum(local):
        arguments |= {"pixel_values_local": torch.cat(crops), "num_local_patches": local}
    return arguments


CODES = {"codebook_size": 20, "temporal_downsample_factor": 1, "base_channels": 32, "hidden_size": 32}
NAMES = {
    **{f"<|visual token{index:06d}|>": index for index in range(5, 25)},
    **{f"word {index}": index for index in (*range(5), *range(25, IMAGE))},
    **{"<image>": IMAGE, "<|extra_200|>": OPENING},
}

ENTRIES = (
    Entry(
        "lfm2_vl",
        packed,
        text={"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
        vision={"num_patches": 64},
        more={"projector_hidden_size": 32},
    ),
    Entry("minicpmv4_6", strip, **MERGED, film=frames_of(strip), runs=2),
    Entry("minicpmv4_7", strip, **MERGED, film=frames_of(strip), runs=2),
    Entry("minicpm_ocr", strip, **MERGED, film=frames_of(strip), runs=2),
    Entry(
        "gemma4",
        positioned,
        text={**GEMMA, **PER_LAYER},
        vision={"pooling_kernel_size": 2, "position_embedding_size": 16},
        more={"audio_config": None},
        unread="later layers read the keys of earlier ones",
        blind="patches are pooled by their positions",
        film=frames_of(positioned),
        runs=2,
    ),
    Entry(
        "gemma4_unified",
        positioned,
        text=GEMMA,
        vision={"pooling_kernel_size": 1, "mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 32},
        more={"audio_config": None},
        blind=NO_ATTENTION,
        film=frames_of(positioned),
        runs=2,
    ),
    Entry(
        "molmo2",
        pooled,
        text={"additional_vocab_size": 2},
        vision={"image_size": [32, 32]},
        more={"adapter_config": {"vision_feature_layer": [-1, -2]}},
        film=pooled_frames,
        runs=2,
        film_token=IMAGE,
    ),
    Entry(
        "fuyu",
        bare_patches,
        more={"image_size": 32, "patch_size": 4},
        fails={"beams": "`generate` does not repeat its images"},
        unread=FUSED,
        blind=NO_ATTENTION,
    ),
    Entry(
        "inkling_mm_model",
        cubes,
        text={
            "layer_types": ["hybrid_sliding", "hybrid"] * 2,
            "sliding_window_size": 8,
            "logits_mup_width_multiplier": 1.0,
            "d_rel": 4,
            "rel_extent": 16,
            **{"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16},
        },
        more={"audio_config": {"n_mel_bins": 4, "mel_vocab_size": 4}},
        unread="convolutions stand between projections and attention",
        blind=NO_ATTENTION,
    ),
    Entry(
        "emu3",
        coded,
        more={"vq_config": {**CODES, "channel_multiplier": [1, 1], "attn_resolutions": []}, "vocabulary_map": NAMES},
        blind="its tokens are entries of a codebook",
    ),
    Entry(
        "deepseek_ocr2",
        with_crops,
        text={"mlp_layer_types": ["dense", "sparse"] * 2},
        vision={
            "sam_config": {
                **{"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
                **{"image_size": 32, "patch_size": 2, "window_size": 4, "global_attn_indexes": [1]},
                "downsample_channels": [32, 64],
            },
            "encoder_config": {
                **{"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
                "num_key_value_heads": 4,
            },
        },
        blind=QUERIES,
    ),
    Entry(
        "step3p7",
        with_crops,
        text={**ALTERNATING, "sliding_window": 8},
        vision={"image_size": 64},
        blind="tokens are convolutions of many patches",
    ),
)
