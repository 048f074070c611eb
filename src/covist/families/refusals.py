"""Why a vision-language model of transformers is not supported: one line, derived from its configuration or stated.

`covist models --all` prints the reasons; a model that is passed to `compress` is refused with its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CROSS_ATTENTION = "its decoder reads the image by cross-attention, so the sequence has no image tokens"
ENCODER_DECODER = "an encoder-decoder: its decoder reads the image by cross-attention"
RESAMPLER = "a resampler condenses the image into learned queries, which have no location in the image"
Q_FORMER = "a Q-Former condenses the image into learned queries, which have no location in the image"
CODEBOOK = "its image tokens are entries of a codebook (VQ), without encoder features to compose"
LATENT_KEYS = "multi-head latent attention: its keys and values are already compressed and are not separate projections"
INDEXED = "an indexer chooses the keys that each query sees, so one key cannot represent others"
HYBRID = "a hybrid decoder: linear attention, convolution or state-space layers besides attention"
CHUNKED = "chunked attention: some layers see only part of the sequence"
SLIDING = "sliding-window attention: some layers see only the most recent tokens"
ABSOLUTE = "learned absolute positions: the distance term of the bias needs rotary positions"
BOTH_WAYS = "its prompt attends in both directions (prefix-LM), which the masks of compression do not support"
NO_TOWER = "no vision tower: patches enter the decoder directly, so there is no encoder signal"
TIMM = "its vision tower is a timm model, whose module names cannot be relied on"
OMNI = "no family file yet: audio and video of an omni model share the prompt"
PAGES = "no family file yet: it reads pages, where every token is text"
NOT_TEXT = "it is not a vision-language model: it reads proteins or outputs actions"
DENOISES = "it denoises blocks of text instead of generating one token after another"
NO_FAMILY = "no family file reads its vision tower yet"
"""If no other reason is known."""

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
    "janus": NO_FAMILY,  # its codebook is for images that it generates, not for those that it reads
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
"""Model type -> reason, where the configuration does not show it."""


def refusal(config: Any) -> str | None:
    """Why a configuration's model is not supported; None if transformers does not list it as image-text-to-text."""
    model_type = getattr(config, "model_type", None)
    if model_type not in image_text_models():
        return None
    return STATED.get(model_type) or _derived(config) or NO_FAMILY


def image_text_models() -> dict[str, str]:
    """Model type -> class of everything that the installed transformers lists as image-text-to-text."""
    # imported here, because plans import the family modules too and do not need transformers
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
"""(Reason, whether it applies to a configuration, its text configuration and the kinds of the text model's layers)."""


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
