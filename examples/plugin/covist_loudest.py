"""Third-party methods and a third-party family in one file, without changes to covist."""

from torch import Tensor

import covist
from covist.families.llava import Llava


@covist.register_method
class Loudest(covist.Method):
    """The tokens with the largest embeddings."""

    name = "loudest"
    info = covist.MethodInfo(
        paper="none", acts="before the decoder", signals="embeddings", budget="exactly K in every layer"
    )

    def select(self, image: covist.ImageContext, count: int) -> Tensor:
        return image.signals.embeddings.norm(dim=-1).topk(count).indices


@covist.register_method
class LoudestTwice(Loudest):
    """The same, and halfway through the decoder half of them, by their hidden states there."""

    name = "loudest-twice"
    info = covist.MethodInfo(
        paper="none",
        acts="before the decoder and halfway through it",
        signals="embeddings, hidden states",
        budget="4/3 K, then 2/3 K: K on average over the layers",
    )

    def schedule(self, layers: int, budget: int, tokens: int) -> covist.Schedule:
        if budget >= tokens or layers < 2:
            return super().schedule(layers, budget, tokens)
        halfway, first = layers // 2, min(budget * 4 // 3, tokens)
        last = max((layers * budget - halfway * first) // (layers - halfway), 1)
        return covist.Schedule(layers, ((0, first), (halfway, last)))

    def reduce(self, state: covist.VisualState, view: covist.DecoderView, count: int) -> covist.Reduction:
        loudest = view.hidden[view.visual].norm(dim=-1).topk(count).indices
        return covist.Reduction(state.restrict(loudest.sort().values))


@covist.register_method
class Growing(covist.Method):
    """The tokens whose features grow most in the second half of the vision tower."""

    name = "growing"
    info = covist.MethodInfo(
        paper="none", acts="before the decoder", signals="states of the tower", budget="exactly K in every layer"
    )
    second_half = covist.EncoderRead("states", 0.5)
    encoder_requests = (second_half,)

    def select(self, image: covist.ImageContext, count: int) -> Tensor:
        before, *_, after = image.signals.read(self.second_half)
        return (after.norm(dim=-1) - before.norm(dim=-1)).topk(count).indices


@covist.register_family
class MyLlava(Llava):
    """Your own model class, if it keeps LLaVA's modules."""

    name = "my-llava"
    model_classes = ("MyLlavaForConditionalGeneration",)
