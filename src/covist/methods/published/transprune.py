"""TransPrune: tokens that layers change and to which the text attends."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.views import BlockView, DecoderView, ImageContext
from covist.formulas.ops import mass_norm
from covist.methods.inside import DropInside, attention_to_image, text_rows
from covist.methods.published import register_published
from covist.methods.shared import largest
from covist.state import VisualState

SMALLEST = 1e-12


@register_published
class TransPrune(DropInside):
    name = "transprune"
    default_positions = "reindex"
    cuts = (7, 9, 12)
    shape = (0.875, 0.625, 0.125)
    untouched_share = 0.54  # above 7 / 32 * 576 / 236, so that the published setting stays unchanged
    watches_blocks = True

    def memory(self, image: ImageContext) -> Tensor:
        """How much the blocks have changed each token so far [N]."""
        return torch.zeros(image.grid.size, dtype=torch.float32, device=image.positions.device)

    def see_block(self, memory: Tensor, block: BlockView) -> None:
        inside = [depth for depth, _ in block.schedule.stages if depth > 0]
        if inside and inside[0] - 1 <= block.layer < inside[-1]:
            memory[block.indices] += change(block.given, block.made).to(memory.device)

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        return largest(score(view, view.memory[state.indices]), count)


def change(given: Tensor, made: Tensor) -> Tensor:
    """How much a block changes tokens [K], from its input and its output before the residual [K, d]."""
    before, after = (states.float().norm(dim=-1).clamp(min=SMALLEST) for states in (given, made))
    cosine = torch.linalg.vecdot(given.float(), made.float()) / (before * after)
    return after / before * (1 - cosine).softmax(0)


def score(view: DecoderView, changed: Tensor) -> Tensor:
    """Importance of the representatives [K], of which `changed` [K] says how much the blocks have changed them."""
    attention = attention_to_image(view, text_rows(view))
    return mass_norm(changed) + mass_norm(attention)
