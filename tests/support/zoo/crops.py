"""Classes whose images are crops of a fixed size, alone, with tiles or padded."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from support.zoo.convolutions import ConvolutionsConfig
from support.zoo.entry import FUSED, INDEXED, NO_ATTENTION, OWN_ATTENTION, QUERIES, Entry
from support.zoo.films import stacked
from support.zoo.visual import Seeds, by_prompt, padded_images, square, tiles

ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2}
SIXTEEN = {"mm_tokens_per_image": 16}
PINPOINTS = {"image_grid_pinpoints": [[32, 64], [64, 32]]}
SAM = {"image_size": 64, "window_size": 4, "global_attn_indexes": [1]}
GEMMA = {"text": {"model_type": "gemma"}, "more": {"projection_dim": 64}, "types": 0}
PROJECTED = {"vision": {"projection_dim": 64}}
LATENTS = {"hidden_size": 64, "resampler_n_latents": 16, "resampler_depth": 1, "resampler_n_heads": 2}
CODES = {"embed_dim": 8, "num_embeddings": 16, "base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 32}
RESNET = {
    **{"model_type": "resnet", "image_size": 64, "hidden_size": 48, "embedding_size": 16},
    **{"hidden_sizes": [16, 48], "depths": [1, 1], "layer_type": "basic"},
}
SOUND = {
    **{"vocab_size": 1, "vocab_offset": 99, "input_feat_size": 16, "hidden_size": 16, "sscp_conv_channel_size": (4, 4)},
    **{"conf_num_hidden_layers": 1, "conf_num_attention_heads": 2},
}
PER_LAYER = {"vocab_size_per_layer_input": 98, "hidden_size_per_layer_input": 8}
GRANITE = {
    **PINPOINTS,
    "downsample_rate": "1/2",
    "deepstack_layer_map": [[1, 0], [2, 1]],
    "spatial_target_layers": [2, 3, 4, 5],
    "projector_dropout": 0.0,
    "qformer_config": {"num_hidden_layers": 1, "cross_attention_frequency": 1, "use_qformer_text_input": False},
}


def one_tile(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """Perception LM has a dimension for tiles: [images, 1, 3, side, side]."""
    return {"pixel_values": square(config, seeds)["pixel_values"][:, None]}


def two_resolutions(config: Any, seeds: Seeds) -> dict[str, Tensor]:
    """The hybrid of DeepSeek-VL sees every image twice."""
    large = config.high_res_vision_config.image_size
    return {**square(config, seeds), **square(config, seeds, "high_res_pixel_values", large)}


ENTRIES = (
    Entry("gemma3", square, text=ALTERNATING, more=SIXTEEN),
    Entry("shieldgemma2", square, text=ALTERNATING, more=SIXTEEN),
    Entry("paligemma", square, **GEMMA),
    Entry(
        "paligemma",
        square,
        **{**GEMMA, "text": {"model_type": "gemma2", **ALTERNATING}},
        eager=True,
        variant="Gemma 2",
        unread="it caps its attention logits",
    ),
    Entry("aya_vision", square, text=ALTERNATING),
    Entry("cohere2_vision", square, text=ALTERNATING, more={"alignment_intermediate_size": 64}),
    Entry(
        "llama4",
        square,
        text={"num_experts_per_tok": 1},
        vision={
            "intermediate_size": 128,
            **dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), 64),
        },
        fails={"beams": "`generate` does not repeat its images"},
    ),
    Entry("llava", square),
    Entry("vipllava", square, more={"vision_feature_layers": [-2, -1]}),
    Entry("video_llava", partial(square, name="pixel_values_images"), film=stacked),
    Entry("llava_next", tiles, more=PINPOINTS),
    Entry("llava_next_video", tiles, more=PINPOINTS, film=stacked),
    Entry("llava_onevision", tiles, more=PINPOINTS, film=stacked),
    Entry(
        "granite4_vision",
        tiles,
        text={"num_hidden_layers": 6},
        vision={"hidden_size": 64},
        more=GRANITE,
        blind=QUERIES,
    ),
    Entry("internvl", square),
    Entry("qianfan_ocr", square),
    Entry("deepseek_vl", square),
    Entry(
        "deepseek_vl_hybrid",
        two_resolutions,
        more={"high_res_vision_config": {**SAM, "image_size": 128, "patch_size": 8, "global_attn_indexes": [0]}},
    ),
    Entry("janus", square, **PROJECTED, more={"vq_config": CODES}),
    Entry("got_ocr2", square, vision=SAM, blind=OWN_ATTENTION),
    Entry("pp_chart2table", square, vision=SAM, blind=OWN_ATTENTION),
    Entry("ovis2", square, vision={"vocab_size": 32}, more={"hidden_size": 64, "vocab_size": 100}),
    Entry("aria", square, more={"projector_patch_to_query_dict": {64: 16}}, blind=QUERIES),
    Entry("idefics2", by_prompt, more={"perceiver_config": LATENTS}, blind=QUERIES),
    Entry("idefics3", by_prompt),
    Entry("smolvlm", by_prompt),
    Entry("mistral3", padded_images),
    Entry("mistral3", padded_images, text={"model_type": "mistral4"}, variant="Mistral 4", unread=FUSED),
    Entry("mistral_large4", padded_images, unread=INDEXED),
    Entry("lighton_ocr", padded_images),
    # These three have towers of timm; here they have other towers, which give their features in the same shape.
    Entry("fast_vlm", square, vision=RESNET, blind=NO_ATTENTION),
    Entry(
        "gemma3n",
        square,
        text={**ALTERNATING, "num_kv_shared_layers": 2, "laurel_rank": 8, **PER_LAYER},
        vision=ConvolutionsConfig(hidden_size=32, vocab_size=1, vocab_offset=98),
        more={"vision_soft_tokens_per_image": 16, "audio_config": SOUND},
        unread="later layers read the keys of earlier ones",
        blind=NO_ATTENTION,
    ),
    Entry(
        "perception_lm",
        one_tile,
        vision={"model_type": "clip_vision_model", "model_args": {"embed_dim": 32}},
        more={"vision_use_cls_token": True},
    ),
)
