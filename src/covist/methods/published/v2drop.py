"""V2Drop: drops the tokens that a layer hardly changes."""

from __future__ import annotations

from torch import Tensor

from covist.contract.method import MethodInfo
from covist.contract.views import DecoderView
from covist.methods.inside import ScoreInside
from covist.methods.registry import register_method


@register_method
class V2Drop(ScoreInside):
    name = "v2drop"
    cuts = (3, 17, 22)
    shape = (1.0, 0.5, 1e-4)  # halves at the second cut; one token is left after the third
    info = MethodInfo(
        paper="Variation-aware Vision Token Dropping for Faster Large Vision-Language Models (CVPR 2026)",
        acts="before layers 3, 17 and 22 of 32",
        signals="decoder states before and after the preceding layer",
        budget="layer average K with our presets: all tokens, a solved count, half of it, then one token",
        criterion="change",
        needs=("decoder-states",),
        licence="Apache-2.0",
        published=(
            "Before layers 3, 17 and 22 of 32, the tokens stay that the preceding layer has changed most, by the "
            "Euclidean norm of the difference between the inputs of two successive layers. No attention is needed. "
            "Original positions. The shipped setting keeps 1/2, 1/4 and then one token, a layer mean of 203 of 576."
        ),
        ours=(
            "The counts for 192, 128 and 64 are not published, so these are our own: the halving and the single token "
            "after the last cut stay as shipped, and the first count is solved for the layer mean. The shipped setting "
            "is reproduced at its own mean. The original acts only on prompts of more than 576 tokens whose image "
            "begins at token 35; here every image is found and has its own pool. For other depths the layers are "
            "scaled. If the layers before the first cut would take more than 9/10 of the budget, the cuts move "
            "forward. In the embedded model the first layer changes flat background most, so few tokens of objects "
            "stay and the accuracy is far below that of random tokens."
        ),
        checked="reference: V2Drop (score and kept tokens; shipped counts and their layer mean)",
    )

    def observed_layer(self, depth: int) -> int:
        return depth - 1

    def score(self, view: DecoderView) -> Tensor:
        before, after = (states[view.visual].float() for states in (view.observed, view.hidden))
        return (after - before).norm(dim=-1)
