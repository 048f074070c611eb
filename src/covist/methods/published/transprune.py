"""TransPrune: tokens that layers change and to which the text attends."""

from __future__ import annotations

import torch
from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import BlockView, DecoderView, ImageContext
from covist.formulas.ops import mass_norm
from covist.methods.inside import DropInside, attention_to_image, last_prompt_row
from covist.methods.registry import register_method
from covist.methods.shared import largest
from covist.state import VisualState

SMALLEST = 1e-12


@register_method
class TransPrune(DropInside):
    name = "transprune"
    default_positions = "reindex"
    cuts = (7, 9, 12)
    shape = (0.875, 0.625, 0.125)
    untouched_share = 0.54  # above 7 / 32 * 576 / 236, so that the published setting stays unchanged
    watches_blocks = True
    info = MethodInfo(
        paper="TransPrune: Token Transition Pruning for Efficient Large Vision-Language Model (CVPR 2026)",
        acts="before layers 7, 9 and 12 of 32, earlier for small budgets",
        signals="inputs and outputs of attention and feed-forward, attention of the text in the next layer",
        budget="layer average K with our presets: all tokens, then solved counts in the proportions 7 : 5 : 1",
        criterion="change",
        needs=("decoder-attention", "decoder-states"),
        licence="MIT",
        published=(
            "Tokens are dropped after the 7th, 9th and 12th layer of 32. In each of the layers 7 to 12, the change of "
            "a token by attention and by feed-forward is the ratio of the norms of output and input (after the norm, "
            "before the residual) times the softmax over the image of 1 - cos(input, output), summed over blocks and "
            "layers. The second term is the attention of all text after the image in the next layer, mean over heads "
            "and rows; both are normalised to a sum of one over the image and added. 7/8, 5/8 and 1/8 of the tokens "
            "stay, a layer mean of 236 of 576. Positions are renumbered."
        ),
        ours=(
            "Layers are counted from one, as the layer mean of 236 implies. Presets for other budgets: the proportions "
            "stay, and the counts are solved for the layer mean. If the layers before the first drop would take more "
            "than half of the budget, the first drop moves forward and the others keep their proportions after it. The "
            "published setting is reproduced at its own mean. The sum begins with the layer before the first drop, "
            "wherever that is. Batches of any size and several images work; without text after an image, the attention "
            "is that of the last prompt token."
        ),
        checked="reference: TransPrune (change of a block, score and kept tokens; published counts and layer mean)",
    )

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
    attention = attention_to_image(view, view.text if len(view.text) else last_prompt_row(view))
    return mass_norm(changed) + mass_norm(attention)
