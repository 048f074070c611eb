"""What the engine needs to know about a model family. A family is one file that fills in this protocol."""

from __future__ import annotations

import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from covist.families.signals import ImageSignals

SignalSink = Callable[[list[ImageSignals]], None]


class Removable(Protocol):
    def remove(self) -> None: ...


class Family(ABC):
    """Adapter between one family of checkpoints and the engine, bound to one loaded model.

    A subclass names the transformers classes it serves and says where the encoder signals come from; everything
    that happens inside the decoder is the engine's and the same for all families.
    """

    name: ClassVar[str]
    model_classes: ClassVar[tuple[str, ...]]
    needs_clip_text: ClassVar[bool] = True
    """Whether a CLIP text tower can serve this family (its encoder is a CLIP vision tower)."""
    assistant_markers: ClassVar[tuple[str, ...]] = ("ASSISTANT:", "[/INST]", "<|im_start|>assistant", "### Assistant:")
    role_markers: ClassVar[tuple[str, ...]] = ("USER:", "[INST]", "<|im_start|>user", "### Human:", "\n")

    def __init__(self, model: nn.Module):
        self.model = model

    @property
    def base(self) -> nn.Module:
        """The module that receives `input_ids` and scatters image features into the prompt."""
        return self.model.model

    @property
    def decoder(self) -> nn.Module:
        """The text model: `layers`, `norm`, `rotary_emb`."""
        return self.base.language_model

    def image_mask(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """[batch, length] bool: which prompt tokens are image tokens (markers included)."""
        token = self.model.config.image_token_id
        if input_ids is not None:
            return input_ids == token
        embedding = self.base.get_input_embeddings()(torch.tensor(token, device=inputs_embeds.device))
        return (inputs_embeds == embedding).all(-1)

    def brings_pictures(self, arguments: dict[str, Any]) -> bool:
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


class Scratch(threading.local):
    """What the hooks of one call leave for each other; every thread has its own, so requests do not mix."""

    def __init__(self) -> None:
        self._left: dict[str, Any] = {}

    def leave(self, name: str, value: Any) -> None:
        self._left[name] = value

    def take(self) -> dict[str, Any]:
        """Everything that was left; nothing stays behind."""
        left, self._left = self._left, {}
        return left


class WrappedMethod:
    """Call `after(arguments, output)` whenever `owner.name(...)` returns; `remove()` restores the original.

    The wrapper is an instance attribute in front of the class's method, so removal is exact. `functools.wraps` keeps
    the signature visible, because `generate` filters its arguments by it.
    """

    def __init__(self, owner: nn.Module, name: str, after: Callable[[dict[str, Any], Any], None]):
        original = getattr(owner, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            after(signature.bind(*args, **kwargs).arguments, output)
            return output

        self._owner, self._name = owner, name
        self._before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
        setattr(owner, name, wrapper)

    def remove(self) -> None:
        self._owner.__dict__.pop(self._name, None)
        self._owner.__dict__.update(self._before)
