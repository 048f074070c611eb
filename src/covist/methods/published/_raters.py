"""What SparseVLM and SparseVLM+ share: text tokens that rate the image, and the schedule.

Counts keep the proportions of the published list for the nearest budget and are solved for the layer mean. If the first
three layers would take more than 3/4 of the budget, the cuts move forward.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from covist.contract.views import DecoderView
from covist.methods.inside import ScoreInside, last_prompt_row


class RatedInside(ScoreInside):
    """Drops tokens after layers 2, 6 and 15 of 32 by the raters' attention; subclasses have their own counts."""

    cuts = (3, 7, 16)
    untouched_share = 0.75
    reads_preceding_layer = True


def pointed_at(view: DecoderView) -> Tensor:
    """How much the image's input embeddings point to each text token after it [T]; the sum is one."""
    return pointing(view.signals.embeddings, view.text_embeddings)


def pointed_at_now(view: DecoderView) -> Tensor:
    """The same for the hidden states of image and text at this depth [T]."""
    return pointing(view.hidden[view.visual], view.hidden[view.text])


def pointing(image: Tensor, text: Tensor) -> Tensor:
    """How much image tokens [K, d] point to each text token [T, d] -> [T], with sum one."""
    text = text.float()
    return (image.to(text) @ text.T).softmax(-1).mean(0)


def raters(view: DecoderView, pointed: Callable[[DecoderView], Tensor] = pointed_at) -> Tensor:
    """Rows of the text tokens after the image to which it points more than on average.

    Without text after the image, the last prompt token rates; if no token stands out, all of them do.
    """
    if not len(view.text):
        return last_prompt_row(view)
    share = pointed(view)
    above = share > share.mean()
    return view.text[above] if bool(above.any()) else view.text
