"""Screens: images of which most tokens are blank, for towers that take images as rows of patches; and such a tower,
run literally on some of its tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from support.case import Case
from support.cases import first_of
from support.families import lively
from support.matrix.qwen2_vl import IMAGE, TURN
from support.slow_llava import SlowLlava
from support.without_a_file import qwen3_5

PROMPT = TURN.replace("{}", "{image} what is the colour of this ?")


def screen(side: int, rows: int, columns: int, seed: int = 0) -> Image.Image:
    """White tokens of side x side pixels, a third of which show something."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.full((rows, columns, side, side, 3), 255, dtype=torch.uint8)
    drawn = torch.rand(rows, columns, generator=generator) < 1 / 3
    pixels[drawn] = torch.randint(0, 256, (int(drawn.sum()), side, side, 3), dtype=torch.uint8, generator=generator)
    return Image.fromarray(pixels.permute(0, 2, 1, 3, 4).reshape(rows * side, columns * side, 3).numpy())


@cache
def _qwen3_5() -> Any:
    torch.manual_seed(0)
    return lively(qwen3_5()[0].eval())


PACKED = (
    *(first_of(family) for family in ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")),
    Case(
        name="qwen3.5",
        family="generic",
        model_class="Qwen3_5ForConditionalGeneration",
        build=_qwen3_5,
        processor=lambda: qwen3_5()[1],
        image=IMAGE,
        turn=TURN,
        slow=SlowLlava,
    ),
)
"""Families whose towers take images as rows of patches."""


def side_of(case: Case) -> int:
    """Pixels of a token."""
    vision = case.model.config.vision_config
    return int(vision.patch_size * vision.spatial_merge_size)


def show(case: Case, *shapes: tuple[int, int], prompts: list[str] | None = None) -> Any:
    """Inputs with one screen of each shape, in rows and columns of tokens; by default one prompt for each."""
    images = [screen(side_of(case), *shape, seed=number) for number, shape in enumerate(shapes)]
    return case.encode(prompts or [PROMPT] * len(shapes), images)


def run_on(tower: Any, pixels: Tensor, grid: Tensor, kept: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The embeddings of the tokens `kept` [N] bool, and their DeepStack features, with attention among these only.

    Positions are those of the whole grid. Attention is written out, one frame, or one window of it, after another.
    """
    config = tower.config
    merge = config.spatial_merge_size
    hidden = tower.patch_embed(pixels)
    if hasattr(tower, "pos_embed"):
        table, weights = get_vision_interpolation_indices_and_weights(
            grid, tower.num_grid_per_side, tower.interpolation_mode, tower.interpolation_align_corners, merge
        )
        hidden = hidden + (tower.pos_embed(table) * weights[:, :, None]).sum(1)
    places = get_vision_position_ids(grid, merge)
    cos, sin = tower.rotary_pos_emb(hidden, places)
    rows = kept.repeat_interleave(merge**2)
    frames = torch.arange(len(_frame_sizes(grid))).repeat_interleave(torch.tensor(_frame_sizes(grid)))
    hidden, cos, sin, places, frames = (part[rows] for part in (hidden, cos, sin, places, frames))
    deep = []
    for number, block in enumerate(tower.blocks):
        groups = frames[:, None]
        if number not in getattr(tower, "fullatt_block_indexes", range(len(tower.blocks))):
            groups = torch.cat([groups, places // (tower.window_size // config.patch_size)], 1)
        hidden = hidden + _attention(block.attn, block.norm1(hidden), cos, sin, groups)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if number in getattr(tower, "deepstack_visual_indexes", ()):
            deep.append(tower.deepstack_merger_list[len(deep)](hidden))
    return tower.merger(hidden), deep


def _frame_sizes(grid: Tensor) -> list[int]:
    return [rows * columns for frames, rows, columns in grid.tolist() for _ in range(frames)]


def _attention(module: Any, given: Tensor, cos: Tensor, sin: Tensor, groups: Tensor) -> Tensor:
    """Of patches [n, d], each of which sees those of its group [n, ...]."""
    queries, keys, values = module.qkv(given).view(len(given), 3, module.num_heads, -1).unbind(1)
    queries, keys = (_turned(part, cos[:, None], sin[:, None]) for part in (queries, keys))
    logits = torch.einsum("ihd,jhd->hij", queries, keys) * queries.shape[-1] ** -0.5
    apart = (groups[:, None] != groups[None]).any(-1)
    return module.proj(
        torch.einsum("hij,jhd->ihd", logits.masked_fill(apart, -torch.inf).softmax(-1), values).flatten(1)
    )


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    return states * cos + torch.cat([-second, first], -1) * sin
