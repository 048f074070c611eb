"""Small random models of any vision-language class of transformers: the class's own configuration, with small sizes.

Every size that a configuration class declares is made small by its name, so an entry of the zoo states only what is
special about its type. Windows and chunks are shorter than an image, and the weights are wide enough that every token
matters: with the usual 0.02, errors would hide.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

PAD, START, END = 0, 1, 2
WORDS = range(5, 80)
IMAGE, VIDEO, AUDIO, OPENING, CLOSING, VIDEO_OPENING, VIDEO_CLOSING = range(90, 97)
VOCABULARY = 100
WINDOW, CHUNK = 8, 12
WIDTH, PATCH, MERGE = 64, 4, 2
SPREAD = 0.08

NAMES = {
    **dict.fromkeys(("image_token_id", "image_token_index", "image_patch_id"), IMAGE),
    **dict.fromkeys(("video_token_id", "video_token_index"), VIDEO),
    **dict.fromkeys(("audio_token_id", "audio_token_index"), AUDIO),
    **dict.fromkeys(("boi_token_id", "boi_token_index", "vision_start_token_id", "image_start_token_id"), OPENING),
    **dict.fromkeys(("eoi_token_id", "eoi_token_index", "vision_end_token_id", "image_end_token_id"), CLOSING),
    "image_bos_token_id": OPENING,
    **{"video_start_token_id": VIDEO_OPENING, "video_end_token_id": VIDEO_CLOSING},
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": END,
}
EXPERTS = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_shared_experts", "moe_num_shared_experts", "n_group", "topk_group"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim"), 32),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    "first_k_dense_replace": 1,
}
LATENT = {
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    "qk_rope_head_dim": 8,
}
INDEXED = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 256}
LINEAR = {
    **dict.fromkeys(("linear_num_key_heads", "linear_num_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 16),
    "linear_num_value_heads": 4,
}
TEXT = {
    **NAMES,
    **EXPERTS,
    **LATENT,
    **INDEXED,
    **LINEAR,
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "dense_intermediate_size"), 48),
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": WINDOW,
    "attention_chunk_size": CHUNK,
}
VISION = {
    **dict.fromkeys(("hidden_size", "embed_dim", "projection_dim", "output_channels"), 32),
    **dict.fromkeys(("intermediate_size", "mlp_dim"), 48),
    **dict.fromkeys(("depth", "num_hidden_layers"), 2),
    **dict.fromkeys(("num_heads", "num_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("out_hidden_size", "text_hidden_size", "output_proj_dims"), WIDTH),
    "head_dim": 16,
    "image_size": 32,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
PARTS = {"text_config": TEXT}
"""Which sizes the parts of a configuration get; those of a vision tower, unless said here."""


def config_of(model_type: str, parts: dict[str, dict[str, Any]], options: dict[str, Any]) -> Any:
    """The configuration of a type: `parts` are its text configuration, vision configuration, ... beyond the sizes."""
    whole = CONFIG_MAPPING[model_type]
    made = {name: _part(whole, name, parts.get(name, {})) for name in whole.sub_configs}
    own = {key: value for key, value in NAMES.items() if key in _declared(whole)}
    return whole(**{**own, **made, **options})


def _part(whole: Any, name: str, given: Any) -> Any:
    if not isinstance(given, dict):  # made already
        return given
    part = CONFIG_MAPPING[given["model_type"]] if "model_type" in given else whole.sub_configs[name]
    if part is AutoConfig:
        part = CONFIG_MAPPING[whole.sub_configs_defaults[name].model_type]
    sizes = PARTS.get(name, VISION)
    small = {key: value for key, value in sizes.items() if key in _declared(part)}
    if getattr(part, "sliding_window", None) is None:  # the class has a window only if its layers say so
        small.pop("sliding_window", None)
    if "kv_lora_rank" in small:  # latent keys have no groups of heads
        small["num_key_value_heads"] = small["num_attention_heads"]
    return part(**{**small, **{key: value for key, value in given.items() if key != "model_type"}})


def _declared(config: Any) -> set[str]:
    return {field.name for field in fields(config)}


def model_of(model_type: str, config: Any, seed: int = 0) -> Any:
    """A random model of the class that transformers has for a type."""
    torch.manual_seed(seed)
    model = getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=SPREAD)
    return model
