"""Saving the trained parts as a standard Hugging Face folder, and loading them again.

weights/        the LLaVA and its processor: AutoModelForImageTextToText and AutoProcessor read it
weights/clip/   the CLIP text tower and both projections; the vision tower is stored once, in the LLaVA
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoProcessor,
    AutoTokenizer,
    CLIPConfig,
    CLIPModel,
    LlavaForConditionalGeneration,
    LlavaNextForConditionalGeneration,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from covist.errors import CovistError
from covist.tiny.model import Size, build_clip, build_llava
from covist.tiny.text import build_caption_tokenizer, build_processor

WEIGHTS = Path(__file__).parent / "weights"
NEXT_WEIGHTS = Path(__file__).parent / "hd" / "weights"
BEDS = {"tiny": WEIGHTS, "next": NEXT_WEIGHTS}  # the embedded models by name
_TOWER, _IN_MODEL = "vision_model.", "vision_tower."
_TEXT_SIDE = "text.safetensors"

Model = LlavaForConditionalGeneration | LlavaNextForConditionalGeneration
Clip = tuple[CLIPModel, PreTrainedTokenizerBase]
Loaded = tuple[Model, ProcessorMixin, Clip]


def save(model: Model, clip: CLIPModel, folder: Path, processor: ProcessorMixin | None = None) -> None:
    """Write model, processor and CLIP to a folder, in fp16; `load` reads it.

    clip: its vision tower must be that of `model`
    processor: by default that of the embedded LLaVA

    >>> from pathlib import Path
    >>> model, processor, (clip, tokenizer) = covist.tiny.build_random()
    >>> covist.tiny.save(model, clip, Path("mine"))
    >>> loaded = covist.tiny.load("mine")
    """
    model_class: Any = type(model)
    stored = model_class(model.config)
    stored.load_state_dict(model.state_dict())
    stored.set_attn_implementation("sdpa")
    stored.half().save_pretrained(folder)
    (processor or build_processor()).save_pretrained(folder)
    beside = folder / "clip"
    clip.config.save_pretrained(beside)
    build_caption_tokenizer().save_pretrained(beside)
    state = {
        name: value.half().contiguous() for name, value in clip.state_dict().items() if not name.startswith(_TOWER)
    }
    save_file(state, beside / _TEXT_SIDE, metadata={"format": "pt"})


def load(folder: Path | str = WEIGHTS, dtype: torch.dtype = torch.float32) -> Loaded:
    """Load an embedded model, its processor, and its CLIP as (CLIPModel, tokenizer), ready for `covist.compress`.

    folder: "tiny" (the LLaVA, the default), "next" (the LLaVA-NeXT of 16 layers), or a folder that `save` has written

    >>> model, processor, clip = covist.tiny.load()
    >>> type(model).__name__
    'LlavaForConditionalGeneration'
    """
    folder = BEDS.get(str(folder), Path(folder))
    if not (folder / "model.safetensors").exists():
        known = " or ".join(map(repr, BEDS))
        raise CovistError(f"no weights in {folder}; give {known}, or a folder that covist.tiny.save has written")
    is_next = AutoConfig.from_pretrained(folder).model_type == "llava_next"
    model_class = LlavaNextForConditionalGeneration if is_next else LlavaForConditionalGeneration
    model = model_class.from_pretrained(folder, dtype=dtype).eval()
    return model, AutoProcessor.from_pretrained(folder), load_clip(folder, dtype)


def has_clip(folder: Path) -> bool:
    """Whether a folder was written by `save`, which puts the CLIP beside the model."""
    return (folder / "clip" / _TEXT_SIDE).exists()


def load_clip(folder: Path, dtype: torch.dtype = torch.float32) -> Clip:
    """The CLIP in a folder that `save` has written, with the model's vision tower, and its tokenizer."""
    clip = CLIPModel(CLIPConfig.from_pretrained(folder / "clip"))
    stored = load_file(folder / "model.safetensors").items()
    tower = {_TOWER + name.partition(_IN_MODEL)[2]: value for name, value in stored if _IN_MODEL in name}
    clip.load_state_dict(load_file(folder / "clip" / _TEXT_SIDE) | tower)
    return nn.Module.to(clip, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder / "clip")


def build_random(seed: int = 0, size: Size | None = None) -> Loaded:
    """Build the embedded LLaVA with random weights, for tests that need a model but no answers.

    size: by default that of the embedded weights

    >>> model, processor, clip = covist.tiny.build_random(size=covist.tiny.Size(decoder_layers=4))
    >>> len(model.model.language_model.layers)
    4
    """
    size = size or Size()
    model, clip = build_llava(size, seed).eval(), build_clip(size, seed).eval()
    clip.vision_model.load_state_dict(model.model.vision_tower.state_dict())
    return model, build_processor(), (clip, build_caption_tokenizer())
