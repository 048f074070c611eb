"""What the engine needs to know about a model family. A family is one file that fills in this protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from covist.contract.profile import FamilyProfile
from covist.contract.signals import ImageSignals

SignalSink = Callable[[list[ImageSignals]], None]


class Removable(Protocol):
    def remove(self) -> None: ...


class Family(FamilyProfile, ABC):
    """Adapter between one family of checkpoints and the engine, bound to one loaded model.

    A subclass names the transformers classes it serves and says where the encoder signals come from; everything
    that happens inside the decoder is the engine's and the same for all families.
    """

    exact_attention: bool = False
    """Whether to read all of the encoder's attention where the family would read a part of it on large images."""
    assistant_markers: ClassVar[tuple[str, ...]] = (
        "ASSISTANT:",
        "[/INST]",
        "<|im_start|>assistant",
        "### Assistant:",
        "<|start_header_id|>assistant<|end_header_id|>",
        "<start_of_turn>model",
        "<|assistant|>",
    )
    """Texts that begin an assistant turn in templates that are widely used; a chat template and `turn_markers=` say
    more."""
    role_markers: ClassVar[tuple[str, ...]] = (
        "USER:",
        "[INST]",
        "<|im_start|>user",
        "### Human:",
        "<|start_header_id|>user<|end_header_id|>",
        "<start_of_turn>user",
        "<|user|>",
    )

    def __init__(self, model: nn.Module):
        self.model: Any = model  # of a transformers class, whose attributes torch declares as tensors or modules

    @property
    def base(self) -> Any:
        """The module that receives `input_ids` and scatters image features into the prompt."""
        return self.model.model

    @property
    def decoder(self) -> Any:
        """The text model: `layers`, `norm`, `rotary_emb`."""
        return self.base.language_model

    def image_mask(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """[batch, length] bool: which prompt tokens are image tokens (markers included)."""
        token = self.model.config.image_token_id
        if input_ids is not None:
            return input_ids == token
        assert inputs_embeds is not None, "a model is given token ids or embeddings"
        embedding = self.base.get_input_embeddings()(torch.tensor(token, device=inputs_embeds.device))
        return (inputs_embeds == embedding).all(-1)

    def brings_images(self, arguments: dict[str, Any]) -> bool:
        """Whether a call of `base` hands visual input over, raw or encoded; `image_mask` says where it goes."""
        encoded = arguments.get("mm_encoder_outputs") or {}
        raw = (arguments.get(name) for name in ("pixel_values", "pixel_values_videos"))
        return any(value is not None for value in (*encoded.values(), *raw))

    def passthrough_reason(self, input_ids: Tensor | None, kwargs: dict) -> str | None:
        """Why this call must run uncompressed (for example video input), or None."""
        return None

    def rotary_axes(self) -> Sequence[int] | None:
        """For multidimensional RoPE the axis of each frequency, else None."""
        return None

    @abstractmethod
    def capture(self, sink: SignalSink, encoder_layers: Sequence[int | float] = ()) -> list[Removable]:
        """Install removable hooks that hand the signals of every encoded image to `sink`, in prompt order.

        `encoder_layers` are further layers of the tower whose class queries and keys a method wants to read, as indices
        or as fractions of the depth; without a class token there is nothing to capture.
        """


def unwrap(model: Any) -> nn.Module:
    """The model inside wrappers such as PEFT's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
