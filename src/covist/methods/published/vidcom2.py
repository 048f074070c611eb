"""VidCom2: unusual frames get more tokens, and in each frame the tokens unlike frame and video stay."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.frames import by_frame, fit_counts, largest_by_frame
from covist.methods.published import register_published

WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1, 2)
TEMPERATURE = 0.01


@register_published
class VidCom2(Method):
    name = "vidcom2"

    def select(self, image: ImageContext, count: int) -> Tensor:
        of_video, of_frame = likeness(by_frame(image.signals.embeddings, image.grid))
        places = of_video.shape[1]
        wanted = (frame_shares(of_video, count / of_video.numel()) * places).tolist()
        counts = fit_counts([max(1, round(own)) for own in wanted], wanted, count, most=places)
        return largest_by_frame(-(of_video + of_frame), counts)


def likeness(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Gaussian similarity of tokens [F, n, d] to the mean of the video, and of their frame -> [F, n] each."""
    tokens = tokens.float()
    variance = tokens.flatten(0, 1).var(0, correction=0)
    steady = variance.argsort(stable=True)[: max(1, tokens.shape[-1] // 2)]
    unit = normalize(tokens[..., steady], dim=-1)

    def near(mean: Tensor) -> Tensor:
        square = (unit - mean).square().sum(-1)
        return torch.stack([torch.exp(-square / (2 * width)) for width in WIDTHS]).sum(0)

    return near(unit.mean((0, 1))), near(unit.mean(1, keepdim=True))


def frame_shares(of_video: Tensor, share: float) -> Tensor:
    """The share of its tokens that each frame keeps [F], for a `share` of all, from the likeness to the video."""
    unlike = -of_video.mean(1)
    gain = ((unlike - unlike.max()) / TEMPERATURE).softmax(0)
    return (share * (1 + gain - gain.mean())).clamp(max=1)
