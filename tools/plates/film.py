"""What is kept of each frame of a short film, by several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from transformers import LlavaNextVideoConfig, LlavaNextVideoForConditionalGeneration

import covist
from covist import tiny
from covist.report.stages import ImageReport
from covist.viz.layout import seen_views
from covist.viz.panels import show_image
from covist.viz.sheet import Sheet
from covist.viz.theme import Theme
from plates.plate import BOLD, EDGE, LINE, TEXT, WIDTH, Representatives, explain

METHODS = ("covist-max", "covist-fixed", "divprune")
BUDGET = 18  # tokens of a frame, of 144
QUESTION = "where is the yellow circle?"
GAP, HEADING, COUNT = 0.1, 0.4, 0.22  # inches between frames, above a strip, above its frames
HEAD = 6 * LINE  # inches of the legend


def film_model() -> tuple[Any, Any, Any]:
    """The weights of the embedded LLaVA in the class of LLaVA-NeXT-Video, its tokenizer and its CLIP.

    The two classes differ in what they do with images of several tiles and with frames, which needs no weights but
    those of a newline that no frame has.
    """
    image_model, processor, clip = tiny.load()
    config = image_model.config
    model = LlavaNextVideoForConditionalGeneration(
        LlavaNextVideoConfig(
            vision_config=config.vision_config,
            text_config=config.text_config,
            image_token_index=config.image_token_id,
            video_token_index=len(processor.tokenizer) - 1,  # a letter that no question has
            vision_feature_layer=config.vision_feature_layer,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    missing, unexpected = model.load_state_dict(image_model.state_dict(), strict=False)
    assert missing == ["model.image_newline"] and not unexpected
    return model.eval(), processor, clip


@torch.inference_mode()
def kept_by(methods: Sequence[str], frames: Sequence[Image.Image]) -> dict[str, ImageReport]:
    """What each method makes of a film."""
    model, processor, clip = film_model()
    config = model.config
    per_frame = (config.vision_config.image_size // config.vision_config.patch_size // config.spatial_pool_stride) ** 2
    run = [config.video_token_id] * (per_frame * len(frames))
    words = processor.tokenizer(tiny.prompt_for(QUESTION)).input_ids
    ids = torch.tensor([[token for word in words for token in (run if word == config.image_token_id else [word])]])
    pixels = processor.image_processor(images=list(frames), return_tensors="pt").pixel_values
    reports = {}
    for method in methods:
        with covist.compress(model, processor.tokenizer, method=method, budget=BUDGET, clip=clip) as handle:
            model(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values_videos=pixels[None])
        (reports[method],) = handle.report.visuals
    return reports


def moving_tokens(moves: np.ndarray, report: ImageReport) -> np.ndarray:
    """Which tokens of a film show something that moves [N], from its pixels [frames, side, side]."""
    rows, columns = report.grid.views[0]
    cells = moves.reshape(len(moves), rows, moves.shape[1] // rows, columns, moves.shape[2] // columns)
    return cells.mean(axis=(2, 4)).reshape(-1) >= 0.5


def describe(report: ImageReport, moves: np.ndarray) -> str:
    """How the kept tokens are shared between what moves and what does not."""
    moving = moving_tokens(moves, report)
    kept, per_frame = report.kept.numpy(), int(report.tokens_per_frame)
    rests = ~moving.reshape(report.frames, per_frame).any(axis=0)  # [places]
    places, times = np.unique(kept[rests[kept % per_frame]] % per_frame, return_counts=True)
    return (
        f"keeps {int(moving[kept].sum())} of {int(moving.sum())} tokens on the ball and "
        f"{len(places)} of {int(rests.sum())} still places, {int((times > 1).sum())} of them in several frames"
    )


def draw(
    frames: Sequence[Image.Image], reports: Mapping[str, ImageReport], facts: Mapping[str, str], theme: Theme
) -> Figure:
    """The film, and below it a strip for every method."""
    width = (WIDTH - 2 * EDGE - (len(frames) - 1) * GAP) / len(frames)
    strip = HEADING + COUNT + width
    sheet = Sheet(EDGE + HEAD + COUNT + width + len(reports) * strip + EDGE, theme=theme, width=WIDTH)
    lines = (f"asked: {QUESTION}", f"{BUDGET} of 144 tokens for each frame on average")
    explain(sheet, EDGE, EDGE, "A ball crosses a still scene", lines)
    lefts = [EDGE + number * (width + GAP) for number in range(len(frames))]
    top = EDGE + HEAD + COUNT
    for number, (left, view) in enumerate(zip(lefts, seen_views(next(iter(reports.values())), frames), strict=True)):
        show_image(sheet.axes(left, top, width, width), view, theme=theme)
        sheet.write(f"frame {number + 1}", top - COUNT / 2, left, fontsize=TEXT, color=theme.soft)
    for number, (method, report) in enumerate(reports.items()):
        top = EDGE + HEAD + COUNT + width + number * strip
        sheet.write(method, top + HEADING - 0.12, fontsize=BOLD, weight="bold", left=EDGE)
        sheet.write(facts[method], top + HEADING - 0.12, EDGE + 1.2, fontsize=TEXT, color=theme.soft)
        kept, counts = Representatives(report, sheet), report.kept_per_frame().tolist()
        for left, view, count in zip(lefts, seen_views(report, frames), counts, strict=True):
            kept.show(view, left, top + HEADING + COUNT, width)
            sheet.write(f"{count} kept", top + HEADING + COUNT / 2, left, fontsize=TEXT, color=theme.soft)
    return sheet.figure
