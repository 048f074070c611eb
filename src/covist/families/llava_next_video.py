"""LLaVA-NeXT-Video: LLaVA-NeXT for images; video frames are pooled before the projector."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from covist.contract.profile import FamilyProfile
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.families.clip_tower import ClassTokenRecord
from covist.families.llava_next import LlavaNext
from covist.families.projected import TowerOutput
from covist.families.reads import Placing, RecordedReads, of_entries
from covist.families.registry import register_family
from covist.families.video import film
from covist.plan import Geometry


@register_family
class LlavaNextVideo(LlavaNext):
    name = "llava-next-video"
    model_classes = ("LlavaNextVideoForConditionalGeneration",)
    processor = "LlavaNextVideoProcessor"
    video = "compressed"
    default_budget = FamilyProfile.default_budget
    video_stand_in = "LlavaNextVideos"
    presets = (  # an image of 672 x 672 pixels
        Geometry("llava-next-video-7b", 32, 4096, 11008, 32, 32, 2880, markers=48, budgets=(640, 320, 160), tiles=5),
    )

    @property
    def visual_tokens(self) -> tuple[int, ...]:
        return (self.model.config.image_token_id, self.model.config.video_token_id)

    def videos(self, output: TowerOutput[ClassTokenRecord]) -> list[ImageSignals]:
        pixels = output.arguments["pixel_values_videos"]  # [videos, frames, 3, h, w]
        layer, _ = output.captured[self.feature_layers[-1]]
        side, frames = math.isqrt(output.features.shape[1]), pixels.shape[1]
        signals: list[ImageSignals] = []
        for number, span in enumerate(output.spans):
            of_video = slice(number * frames, (number + 1) * frames)
            feeding = EncoderLayer(
                layer.class_query[of_video], layer.class_key[of_video], layer.keys[of_video], layer.heads
            )
            requested = of_entries(output.requested, of_video)
            part_of = partial(self._frames, pixels[number], feeding, output.features[of_video], requested)
            signals += film(span.flatten(0, -2), (side, side), frames, part_of)
        return signals

    def _frames(
        self, pixels: Tensor, layer: EncoderLayer, features: Tensor, requested: RecordedReads, part: range
    ) -> dict[str, Any]:
        """The `ImageSignals` fields for some frames of a video, given its pixels, layer, features and reads.

        A token is a square of patches, so methods that read single patches of the encoder find none, as in a tower
        without a class token. The attention is the class token's.
        """
        of_part, tower = slice(part.start, part.stop), self.base.vision_tower
        layer = EncoderLayer(layer.class_query[of_part], layer.class_key[of_part], layer.keys[of_part], layer.heads)
        pixels, features, count = pixels[of_part], features[of_part], features.shape[1]
        is_clip_space = features.shape[-1] == tower.config.hidden_size * len(self.feature_layers)

        def per_token(per_patch: Tensor) -> Tensor:
            """[frames, patches, c] -> [N, c]."""
            return squares(per_patch.float().transpose(1, 2), count).transpose(1, 2).flatten(0, 1)

        placing = Placing(
            query_patches=lambda: [torch.arange(1 + layer.keys.shape[1], device=features.device)],
            masses=lambda per_patch: squares(per_patch[:, None], count).flatten(),
            means=per_token,
            states=per_token,
            class_tokens=1,
        )
        return {
            "read_attention": lambda: squares(layer.attention(), count),
            "read_keys": lambda: per_token(layer.keys),
            "read_hidden": lambda: features.flatten(0, 1),
            "project": self.base.multi_modal_projector,
            "text_space": (lambda hidden: tower.post_layernorm(hidden[..., -tower.config.hidden_size :]))
            if is_clip_space
            else None,
            "requested": placing.reads(of_entries(requested, of_part)),
            "read_pixels": lambda: list(pixels.detach().cpu()),
        }


def squares(per_patch: Tensor, count: int) -> Tensor:
    """Means over squares of patches, `count` of them per frame: [frames, *, patches] -> [frames, *, count]."""
    side, stride = math.isqrt(per_patch.shape[-1]), math.isqrt(per_patch.shape[-1]) // math.isqrt(count)
    return avg_pool2d(per_patch.unflatten(-1, (side, side)), stride).flatten(-2)
