"""Why a vision-language model of transformers is not served, in one line: derived from its configuration, or stated.

`covist models --all` prints the reasons, and a model that is handed in is refused with its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CROSS_ATTENTION = "its decoder reads the image by cross-attention, so no image token stands in the sequence"
ENCODER_DECODER = "an encoder-decoder: its decoder reads the image by cross-attention"
RESAMPLER = "a resampler condenses the image into learned queries, which have no place on it"
Q_FORMER = "a Q-Former condenses the image into learned queries, which have no place on it"
CODEBOOK = "its image tokens are entries of a codebook (VQ), without features of an encoder to compose"
LATENT_KEYS = "multi-head latent attention: its keys and values are compressed already, and not separate projections"
INDEXED = "an indexer chooses the keys that each query sees, so a key cannot stand for others"
HYBRID = "a hybrid decoder: linear attention, convolution or state-space layers next to attention"
CHUNKED = "chunked attention: layers that see only a part of the sequence"
SLIDING = "sliding-window attention: layers that see only the last tokens"
ABSOLUTE = "learned absolute positions: the distance term of the bias needs rotary ones"
BOTH_WAYS = "its prompt attends in both directions (prefix-LM), which the masks of compression do not know"
NO_TOWER = "no vision tower: patches enter the decoder directly, and there is no encoder signal"
TIMM = "its vision tower is a timm model, whose modules have no names to rely on"
OMNI = "no family file yet: audio and video of an omni model share the prompt"
PAGES = "no family file yet: it reads pages, where every token is text"
NOT_TEXT = "it is no vision-language model: it reads proteins or writes actions"
DENOISES = "it denoises blocks of text instead of writing token after token"
NO_FAMILY = "no family file reads its vision tower yet"
"""Where nothing speaks against the model, and nothing is known about it either."""

STATED = {
    "aria": RESAMPLER,
    "blip": CROSS_ATTENTION,
    "deepseek_ocr2": PAGES,
    "diffusion_gemma": DENOISES,
    "evolla": NOT_TEXT,
    "fast_vlm": TIMM,
    "fuyu": NO_TOWER,
    "gemma4_unified": NO_TOWER,
    "git": ABSOLUTE,
    "glm_ocr": PAGES,
    "got_ocr2": PAGES,
    "hunyuan_vl": PAGES,
    "idefics": CROSS_ATTENTION,
    "idefics2": RESAMPLER,
    "janus": NO_FAMILY,  # its codebook is for images that it draws, not for those that it reads
    "kosmos-2": RESAMPLER,
    "kosmos-2.5": RESAMPLER,
    "lfm2_vl": HYBRID,
    "lighton_ocr": PAGES,
    "minimax_m3_vl": INDEXED,
    "mllama": CROSS_ATTENTION,
    "paddleocr_vl": PAGES,
    "paligemma": BOTH_WAYS,
    "perception_lm": TIMM,
    "pi0": NOT_TEXT,
    "pp_chart2table": PAGES,
    "qwen2_5_omni_thinker": OMNI,
    "qwen3_omni_moe_thinker": OMNI,
    "vision-encoder-decoder": ENCODER_DECODER,
}
"""Model type -> reason, where the configuration does not tell."""


def refusal(config: Any) -> str | None:
    """Why the model of a configuration is not served; None if transformers does not list it as image-text-to-text."""
    model_type = getattr(config, "model_type", None)
    if model_type not in image_text_models():
        return None
    return STATED.get(model_type) or _derived(config) or NO_FAMILY


def image_text_models() -> dict[str, str]:
    """Model type -> class of everything that the installed transformers lists as image-text-to-text."""
    # here, because the family modules are imported for plans as well, which need no transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


_RULES: tuple[tuple[str, Callable[[Any, Any, set[str]], bool]], ...] = (
    (ENCODER_DECODER, lambda config, text, kinds: bool(_field(config, "is_encoder_decoder"))),
    (Q_FORMER, lambda config, text, kinds: _field(config, "qformer_config") is not None),
    (CODEBOOK, lambda config, text, kinds: _field(config, "vq_config") is not None),
    (LATENT_KEYS, lambda config, text, kinds: _field(text, "kv_lora_rank") is not None),
    (INDEXED, lambda config, text, kinds: _any_with(kinds, "indexed")),
    (HYBRID, lambda config, text, kinds: _any_with(kinds, "linear", "conv", "mamba", "hybrid")),
    (CHUNKED, lambda config, text, kinds: _any_with(kinds, "chunked")),
    (SLIDING, lambda config, text, kinds: _any_with(kinds, "sliding") or not kinds and _has_window(text)),
)
"""Reason, and whether it holds for a configuration, its text model's, and the kinds of that model's layers."""


def _derived(config: Any) -> str | None:
    text = config.get_text_config()
    kinds = set(_field(text, "layer_types") or ())
    return next((reason for reason, holds in _RULES if holds(config, text, kinds)), None)


def _any_with(kinds: set[str], *words: str) -> bool:
    return any(word in kind for kind in kinds for word in words)


def _has_window(text: Any) -> bool:
    return _field(text, "sliding_window") is not None and _field(text, "use_sliding_window") is not False


def _field(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except RuntimeError:  # of configurations whose layers differ
        return None
