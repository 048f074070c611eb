"""Classes whose images are rows of patches with a grid: Qwen and all that followed it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from support.zoo.entry import FUSED, INDEXED, Entry
from support.zoo.films import frames_of, in_pairs
from support.zoo.tiny import IMAGE, OPENING
from support.zoo.visual import Seeds, flat, patches, square_patches

SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
PARTIAL = {**SECTIONS, "partial_rotary_factor": 0.5}
AXES, HALF = {"rope_parameters": SECTIONS}, {"rope_parameters": PARTIAL, "head_dim": 32}
SPATIAL = {"rope_parameters": {**SECTIONS, "mrope_section": [3, 3, 2]}}
NARROW = {"rope_parameters": {**PARTIAL, "mrope_section": [1, 1, 2]}}
FOUR = {"rope_parameters": {**SECTIONS, "mrope_section": [2, 2, 2, 2]}}
PER_KIND = {"rope_parameters": {"sliding_attention": SECTIONS, "full_attention": SECTIONS}}
DEEP = {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
LEARNED = {"num_position_embeddings": 64}
WINDOWS = {"window_size": 16, "fullatt_block_indexes": [1]}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2}
HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2}
QWEN4 = {
    "layer_types": ["linear_attention", "indexed_attention"] * 2,
    **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16},
    **{"indexer_budget": 256, "indexer_compress_ratio": 4},
    **{"ple_layer_ids": [1], "ple_embed_dim": 32, "heads_per_ngram": 2, "split_ngram_parts": 1},
    **{"ngram_vocab_size_base": 64, "make_ngram_vocab_size_divisible_by": 2, "hc_count": 2, "hc_lowrank": 8},
}
MAMBA = {
    "layers_block_type": ["mamba", "attention", "mlp", "mamba", "moe", "attention"],
    **{"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8},
}
BLOCKS = {
    "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
    **{"index_block_size": 4, "index_topk_blocks": 64, "rotary_dim": 8},
}
PLACES = {"pos_emb_height": 8, "pos_emb_width": 8}
MUSED = {**ALTERNATING, "qk_scale_factor": 1.0, "output_multiplier": 1.0}  # the published ones magnify rounding
MUSING = {"out_hidden_size": 128, "projector_hidden_size": 32}
MUSE_AUDIO = {"patch_sizes": [16], "hidden_sizes": [8], "depths": [1], "num_hidden_layers": 1}
AUDIO = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 64}
HEARING = {"audio_config": {**AUDIO, "num_mel_bins": 8}, "vision_start_token_id": OPENING}


def merged_patches(config: Any, seeds: Seeds) -> dict[str, torch.Tensor]:
    """VideoLLaMA 3 is told how many patches become one token."""
    arguments = patches(config, seeds, time=1)
    return {**arguments, "image_merge_sizes": torch.full((len(flat(seeds)),), 2)}


def sided(config: Any, seeds: Seeds) -> dict[str, torch.Tensor]:
    """Nemotron Omni has no time in its grids."""
    arguments = patches(config, seeds, time=1)
    return {"pixel_values": arguments["pixel_values"], "image_grid_hw": arguments["image_grid_thw"][:, 1:]}


def timed(config: Any) -> dict[str, torch.Tensor]:
    """Omni models are told how long a frame lasts."""
    return {**frames_of(patches)(config), "video_second_per_grid": torch.tensor([1.0])}


flat_patches = partial(patches, time=1)

FILM: dict[str, Any] = {"film": frames_of(patches)}
BY_FRAME: dict[str, Any] = {**FILM, "runs": 2}
GLM: dict[str, Any] = {**BY_FRAME, "film_token": IMAGE}  # told apart by what stands around it
TIMED: dict[str, Any] = {"film": timed}
FLAT: dict[str, Any] = {"film": frames_of(flat_patches)}

ENTRIES = (
    Entry("qwen2_vl", patches, text=AXES, vision={"hidden_size": 64}, **FILM),
    Entry("qwen2_5_vl", patches, text=AXES, vision=WINDOWS, **FILM),
    Entry("qwen3_vl", patches, text=AXES, vision=DEEP, **BY_FRAME),
    Entry("qwen3_vl_moe", patches, text=AXES, vision=DEEP, **BY_FRAME),
    Entry("cosmos3_omni", patches, text=AXES, vision=DEEP, **BY_FRAME),
    Entry("cosmos3_edge", flat_patches, text=AXES, vision={"num_patches": 64}, **FLAT, runs=2),
    Entry("cohere_compass", patches, text={**ALTERNATING, **PER_KIND}, vision=DEEP, **BY_FRAME),
    Entry("qwen2_5_omni_thinker", patches, text=AXES, vision=WINDOWS, more=HEARING, **TIMED),
    Entry("qwen3_omni_moe_thinker", patches, text=AXES, vision=DEEP, more=HEARING, **TIMED),
    Entry("qwen3_5", patches, text={**HALF, **HYBRID}, vision=LEARNED, **BY_FRAME),
    Entry("qwen3_5_moe", patches, text={**HALF, **HYBRID}, vision=LEARNED, **BY_FRAME),
    Entry("qwen4_exp", patches, text={**HALF, **QWEN4}, vision=LEARNED, unread=INDEXED, **BY_FRAME),
    Entry("glm4v", patches, text=NARROW, **GLM),
    Entry("glm46v", patches, text=NARROW, **GLM),
    Entry("glmga", patches, text=NARROW, **GLM),
    Entry("glm4v_moe", patches, text=NARROW, **GLM),
    Entry("glm_ocr", patches, text=NARROW, **GLM),
    Entry(
        "glm5_next",
        patches,
        text={"layer_types": ["linear_attention", "indexed_attention"] * 2, "qk_rope_head_dim": 0, "index_kpool": 4},
        vision={"projection_intermediate_size": 48},
        unread=INDEXED,
        **GLM,
    ),
    Entry("exaone4_5", patches, text=ALTERNATING, vision=WINDOWS, **FILM),
    Entry("hyperclovax_vision_v2", patches, vision=WINDOWS, **FILM),
    Entry(
        "ernie4_5_vl_moe",
        flat_patches,
        text={"moe_intermediate_size": [32, 16], **SPATIAL},
        fails={"no cache": "`generate` does not extend the types of its experts"},
        **FLAT,
    ),
    Entry("paddleocr_vl", square_patches, text=AXES),
    Entry(
        "kimi_k25",
        square_patches,
        vision=PLACES,
        more={"projection_hidden_size": 32},
        unread=FUSED,
        film=frames_of(square_patches),
        fails={"video": "it counts the tokens of frames that its tower has averaged"},
    ),
    Entry(
        "hunyuan_vl",
        flat_patches,
        text=FOUR,
        vision={"temporal_patch_size": 1, "max_image_size": 64},
        known={"batch": "one axis of its positions counts the images of the whole batch"},
        blind="separators stand between the rows of tokens",
    ),
    Entry(
        "minimax_m3_vl",
        patches,
        text=BLOCKS,
        more={"projector_hidden_size": 48},
        known={"batch": "its tower lets the images of a batch see each other"},
        **FILM,
    ),
    Entry("muse_glimmer", patches, text=MUSED, vision=PLACES, more=MUSING, **FILM),
    Entry("muse_spark", patches, text=MUSED, vision=PLACES, more={**MUSING, "audio_config": MUSE_AUDIO}, **FILM),
    Entry("video_llama_3", merged_patches, blind="patches are merged by interpolation", film=frames_of(merged_patches)),
    Entry(
        "nemotron_h_omni",
        sided,
        text=MAMBA,
        vision={"video_temporal_patch_size": 2, "num_registers": 1, "num_cls_tokens": 2, "max_img_size": 64},
        more={"audio_config": None, "projector_hidden_size": 32, "vision_hidden_size": 32},
        film=in_pairs,
        fails={"video": "it joins the frames of its tower as if they were a list"},
        runs=2,
    ),
)
