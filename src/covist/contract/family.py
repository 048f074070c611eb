"""What the engine needs to know about a model family. Each family is one file that implements this class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRequest
from covist.contract.profile import FamilyProfile
from covist.contract.signals import ImageSignals, PlacedSignals
from covist.errors import CovistError

SignalSink = Callable[[list[ImageSignals]], None]
RequestedNow = Callable[[], Collection[EncoderRequest]]
"""Returns what the running method requests from the encoder."""
PatchRating = Callable[[Tensor], Tensor | None]
"""The pixels of an image's tokens [frames, rows, columns, 3, values], as the tower receives them -> scores
[frames, rows, columns], above zero for tokens to encode; None if all are."""
NOT_PACKED = (
    "{method} leaves patches out before the vision tower, which needs a tower that takes images as rows of patches, as "
    "those of Qwen2-VL to Qwen3.5 do; {tower} does not: choose another method"
)


class Removable(Protocol):
    def remove(self) -> None: ...


class Family(FamilyProfile, ABC):
    """Adapter between one family of checkpoints and the engine, bound to one loaded model.

    A subclass names the transformers classes it serves and defines where the encoder signals come from. Everything
    inside the decoder belongs to the engine and is the same for all families.
    """

    companion_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments by which `base` passes features for later layers to the decoder. If there are images, the engine
    removes them and adds `ImageSignals.companions` itself, which follow the tokens through every reduction."""
    exact_attention: bool = False
    """Whether to read all of the encoder's attention, where the family would read only part of it on large images."""
    tokenizer: Any | None = None
    """For families that must read the text of a prompt; None if unknown."""
    assistant_markers: ClassVar[tuple[str, ...]] = (
        "ASSISTANT:",
        "[/INST]",
        "<|im_start|>assistant",
        "### Assistant:",
        "<|start_header_id|>assistant<|end_header_id|>",
        "<start_of_turn>model",
        "<|assistant|>",
    )
    """Texts that begin an assistant turn in widely used templates; a chat template and `turn_markers=` can add more."""
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
        self.model: Any = model  # Any, because torch declares the attributes of a module as tensors or modules

    @property
    def base(self) -> Any:
        """The module that receives `input_ids` and scatters image features into the prompt."""
        return self.model.model

    @property
    def decoder(self) -> Any:
        """The text model: `layers`, `norm`, `rotary_emb`."""
        return self.base.language_model

    @property
    def visual_tokens(self) -> tuple[int, ...]:
        """Ids of the prompt tokens that stand for images, and for videos where the family compresses them."""
        return (self.model.config.image_token_id,)

    def image_mask(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """[batch, length] bool: which prompt tokens are visual tokens (markers included)."""
        if input_ids is not None:
            return torch.stack([input_ids == token for token in self.visual_tokens]).any(0)
        assert inputs_embeds is not None, "a model is given token ids or embeddings"
        tokens = torch.tensor(self.visual_tokens, device=inputs_embeds.device)
        embeddings = self.base.get_input_embeddings()(tokens)  # [tokens, d]
        return torch.stack([(inputs_embeds == embedding).all(-1) for embedding in embeddings]).any(0)

    def images_in(self, pieces: list[PlacedSignals], ids: Tensor | None) -> list[PlacedSignals]:
        """The images of one prompt `ids` [n], given the pieces that the encoder made, in prompt order.

        A family whose encoder sees an image in tiles joins the tiles that the prompt shows as one image.
        """
        return pieces

    def encoded(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The features that a call of `base` received already encoded, by modality: "image", "video"."""
        features = arguments.get("mm_encoder_outputs")
        return {"image": features} if isinstance(features, Tensor) else features or {}

    def brings_images(self, arguments: dict[str, Any]) -> bool:
        """Whether a call of `base` passes visual input, raw or encoded; `image_mask` says where it goes."""
        raw = (arguments.get(name) for name in ("pixel_values", "pixel_values_videos"))
        return any(value is not None for value in (*self.encoded(arguments).values(), *raw))

    @abstractmethod
    def capture(
        self, sink: SignalSink, requests: Sequence[EncoderRequest] = (), requested_now: RequestedNow | None = None
    ) -> list[Removable]:
        """Install removable hooks that pass the signals of every encoded image to `sink`, in prompt order.

        `requests` is all that methods may request from further layers of the tower (`Method.encoder_requests`). A read
        is recorded only while `requested_now` returns it, or always if `requested_now` is None.
        """

    def gate(self, rate: PatchRating, method: str) -> Removable:
        """Install a removable gate in front of the vision tower, which lets in what `rate` rates above zero.

        Placeholders of the prompt keep their number: other tokens have a row of zeros, and `ImageSignals.patch_scores`
        tells them apart. Call it after `capture`. `method` is named in the refusal of a tower without such an entrance.
        """
        raise CovistError(NOT_PACKED.format(method=method, tower=f"the vision tower of {type(self.model).__name__}"))


def unwrap(model: Any) -> nn.Module:
    """The model inside wrappers such as PEFT's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
