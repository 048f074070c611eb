"""PyramidDrop: drops half of the tokens at each of three depths."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.methods.inside import ScoreInside, attention_to_image, last_prompt_row
from covist.methods.registry import register_method


@register_method
class PyramidDrop(ScoreInside):
    name = "pyramiddrop"
    default_positions = "reindex"
    cuts = (8, 16, 24)
    shape = (1.0, 0.5, 0.25)
    untouched_share = 0.54  # above 8 / 32 * 576 / 270, so that the published setting stays unchanged
    info = MethodInfo(
        paper=(
            "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction (CVPR "
            "2025)"
        ),
        acts="before layers 8, 16 and 24 of 32, earlier for small budgets",
        signals="attention of the last prompt token in the next layer",
        budget="layer average K with our presets: all tokens, then solved counts that halve",
        criterion="attention",
        needs=("decoder-attention",),
        licence="MIT",
        published=(
            "Tokens are dropped before layers 8, 16 and 24 of 32, by the attention of the last prompt token in the "
            "next layer (its norm and projections on the current states, softmax over the whole causal row, mean over "
            "heads). Positions are renumbered after every drop. The published setting keeps 1/2, 1/4 and 1/8, a layer "
            "mean of 270 of 576."
        ),
        ours=(
            "Presets for other budgets: the halving stays, and the counts are solved for the layer mean. If the layers "
            "before the first drop would take more than half of the budget, the first drop moves forward and the "
            "others divide the layers after it (192 of 576: layers 5, 14, 23). The published setting is reproduced at "
            "its own mean."
        ),
        checked=(
            "golden: pyramiddrop (query row, attention, score, kept tokens and positions of three stages; one cut at "
            "192, 128 and 64)"
        ),
    )

    def score(self, view: DecoderView) -> Tensor:
        return attention_to_image(view, last_prompt_row(view))
