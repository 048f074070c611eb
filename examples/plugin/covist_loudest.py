"""A third-party method and a third-party family in one file, without changes to covist."""

from torch import Tensor

import covist
from covist.families.llava import Llava
from covist.families.registry import register_family


@covist.register_method
class Loudest(covist.Method):
    """The tokens with the largest embeddings."""

    name = "loudest"
    info = covist.MethodInfo(
        paper="none", acts="before the decoder", signals="embeddings", budget="exactly K in every layer"
    )

    def select(self, image: covist.ImageContext, count: int) -> Tensor:
        return image.signals.embeddings.norm(dim=-1).topk(count).indices


@register_family
class MyLlava(Llava):
    """Your own model class, if it keeps LLaVA's modules."""

    name = "my-llava"
    model_classes = ("MyLlavaForConditionalGeneration",)
