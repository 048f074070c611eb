"""Why a vision-language model of transformers cannot be compressed: one line, derived from its configuration or stated.

`covist models` prints the reasons; a model that is passed to `compress` is refused with its own.
"""

from __future__ import annotations

from typing import Any

from covist.contract.text_config import field, text_config

CROSS_ATTENTION = "reads images by cross-attention: no image tokens"
ENCODER_DECODER = "an encoder-decoder: reads images by cross-attention"
OWN_GENERATE = "has its own generate, and only 32 tokens per image"
ABSOLUTE = "learned absolute positions: tokens cannot be left out"
INSIDE = "merges images into the prompt inside its text model"
KEPT_PROMPT = "its cache keeps prompt and answer apart (R-SWA)"
DENOISES = "denoises blocks of text: no causal decoding"
TEXT_ONLY = "text only, although transformers lists it"
NOT_TEXT = "not a vision-language model"

STATED = {
    "blip": CROSS_ATTENTION,
    "blip-2": OWN_GENERATE,
    "chameleon": INSIDE,
    "diffusion_gemma": DENOISES,
    "evolla": NOT_TEXT,
    "git": ABSOLUTE,
    "idefics": CROSS_ATTENTION,
    "instructblip": OWN_GENERATE,
    "instructblipvideo": OWN_GENERATE,
    "kosmos-2": ABSOLUTE,
    "kosmos-2.5": ABSOLUTE,
    "mistral4": TEXT_ONLY,
    "mllama": CROSS_ATTENTION,
    "phi4_multimodal": INSIDE,
    "pi0": NOT_TEXT,
    "vision-encoder-decoder": ENCODER_DECODER,
}
"""Model type -> reason, where the configuration does not show it."""


def refusal(config: Any) -> str | None:
    """Why a configuration's model cannot be compressed; None if nothing is known against it."""
    stated = STATED.get(getattr(config, "model_type", ""))
    if stated is not None or config is None:
        return stated
    if field(config, "is_encoder_decoder"):
        return ENCODER_DECODER
    kinds = field(text_config(config), "layer_types") or ()
    return KEPT_PROMPT if any("reference_sliding" in str(kind) for kind in kinds) else None


def image_text_models() -> dict[str, str]:
    """Model type -> class of everything that the installed transformers lists as image-text-to-text."""
    # imported here, because plans import the family modules too and do not need transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
