"""The architecture of the video test bed: a LLaVA-OneVision with a narrow SigLIP tower and a narrow Qwen2 decoder."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipVisionConfig,
)
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

from covist.families.processors import VIDEO_PART, image_only
from covist.tiny.films.scenes import DIRECTIONS, FILM_SIDE, FRAMES
from covist.tiny.glyphs import DIGITS
from covist.tiny.model import TOKEN_IDS, Size, position_waves
from covist.tiny.questions import QUADRANTS
from covist.tiny.scenes import COLORS, SHAPES
from covist.tiny.text import CHAT_TEMPLATE, IMAGE, SPECIAL, START, word_tokenizer

PATCH = 8
GRID = FILM_SIDE // PATCH  # patches per side of a frame
PATCHES = GRID * GRID
SIDE = GRID // 2  # tokens per side of a frame: the model halves it
TOKENS = SIDE * SIDE  # of a frame
VIDEO_TOKENS = FRAMES * TOKENS + 1  # a newline ends a video
VIDEO_SIZE = Size(width=128, heads=4, vision_layers=4, decoder_layers=6, decoder_mlp=384)

VIDEO = "<video>"
_WORDS = (
    "USER:", "ASSISTANT:", "?", "the", "is", "what", "which", "way", "where", "how", "many", "for", "does", "did", "at",
    "there", "color", "shape", "object", "objects", "digit", "frames", "first", "last", "start", "end", "move", "moved",
    "appear", "appeared", "disappear", "disappeared", "change", "changed", "before", "after", "or", "12",
)  # fmt: skip
VOCABULARY = (*SPECIAL, VIDEO, *_WORDS, *COLORS, *SHAPES, *DIRECTIONS, *QUADRANTS, *DIGITS)
TOKEN_ID = {word: index for index, word in enumerate(VOCABULARY)}
_PIXELS: dict[str, Any] = {
    "size": {"height": FILM_SIDE, "width": FILM_SIDE}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3,
}  # fmt: skip


def video_config(size: Size) -> LlavaOnevisionConfig:
    # Any: the pooling head is switched off by a field that the class does not declare, as in published checkpoints
    make_tower: Any = SiglipVisionConfig
    tower = make_tower(
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.vision_layers,
        num_attention_heads=size.heads,
        image_size=FILM_SIDE,
        patch_size=PATCH,
        vision_use_head=False,
    )
    decoder = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=size.decoder_width,
        intermediate_size=size.decoder_mlp,
        num_hidden_layers=size.decoder_layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        **TOKEN_IDS,
    )
    return LlavaOnevisionConfig(
        vision_config=tower,
        text_config=decoder,
        image_token_index=TOKEN_ID[IMAGE],
        video_token_index=TOKEN_ID[VIDEO],
        image_grid_pinpoints=[[FILM_SIDE, FILM_SIDE]],
        vision_aspect_ratio="anyres_max_1",
        tie_word_embeddings=False,
        **TOKEN_IDS,
    )


def build_video(size: Size = VIDEO_SIZE, seed: int = 0) -> LlavaOnevisionForConditionalGeneration:
    torch.manual_seed(seed)
    model = LlavaOnevisionForConditionalGeneration(video_config(size))
    with torch.no_grad():  # neighbours are similar from the start
        table = model.model.vision_tower.embeddings.position_embedding.weight
        table.copy_(0.3 * position_waves(table.shape[1], GRID))
    return model


def build_video_tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(f"{START} $A", TOKEN_ID, image_token=IMAGE, video_token=VIDEO)


def build_video_processor() -> Any:
    """Without its video half, which needs torchvision; `save_video` writes the settings of that half."""
    template = CHAT_TEMPLATE.replace(
        "<image>\n{% endif %}", "<image>\n{% elif part['type'] == 'video' %}<video>\n{% endif %}"
    )
    return image_only(LlavaOnevisionProcessor)(
        image_processor=LlavaOnevisionImageProcessorPil(**_PIXELS, image_grid_pinpoints=[[FILM_SIDE, FILM_SIDE]]),
        tokenizer=build_video_tokenizer(),
        num_image_tokens=PATCHES,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_1",
        chat_template=template,
    )


def save_video(model: LlavaOnevisionForConditionalGeneration, folder: Path) -> None:
    """Write model and processor to a folder, in fp16; `covist.load_model` reads it."""
    stored = LlavaOnevisionForConditionalGeneration(model.config)
    stored.load_state_dict(model.state_dict())
    stored.set_attn_implementation("sdpa")
    stored.half().save_pretrained(folder)
    build_video_processor().save_pretrained(folder)
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text())
    settings[VIDEO_PART] = {"video_processor_type": "LlavaOnevisionVideoProcessor", **_PIXELS}
    path.write_text(json.dumps(settings, indent=2) + "\n")
