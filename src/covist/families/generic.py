"""Any model that follows transformers' pattern: image features stand in for placeholders before the text model runs.

Nothing here is written for one class. Modules are found by structure, placeholders in the configuration, the layout of
tokens in the arguments that name it, and the evidence where the tower calls its attention (`_tower_reader.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRequest
from covist.contract.family import Family, PatchRating, Removable, RequestedNow, SignalSink
from covist.contract.signals import ImageSignals, PlacedSignals
from covist.errors import CovistError
from covist.families.encoding import Encoding, TowerTaps, encoder_layers
from covist.families.folding import CallTap, Folding, Known, ModuleCall
from covist.families.gate import PatchGate, packed_tower
from covist.families.hooks import Running, WrappedMethod, require_configured_features
from covist.families.layouts import views_of
from covist.families.pixels import shown_pixels
from covist.grid import Grid

PLACEHOLDERS = ("image_token_id", "image_token_index", "image_patch_id", "video_token_id", "video_token_index")
"""Fields of a configuration that hold the ids of tokens that stand for images and videos."""
RAW = ("pixel_values", "image_patches")
"""How the names of arguments begin that bring images or videos which are not encoded yet."""
MODALITIES = {"get_image_features": "image", "get_video_features": "video"}

MERGES_INSIDE = (
    "{name} puts image features into the prompt inside its text model, where covist cannot meet the prompt before it"
)
NO_FEATURES = "{name} has no get_image_features, the method by which transformers' vision-language models encode images"
NO_PLACEHOLDER = "the configuration of {name} names no image token ({fields})"


class Generic(Family):
    """A family for every class that no file serves."""

    name = "generic"
    model_classes: ClassVar[tuple[str, ...]] = ()
    needs_clip_text = False
    encoder_signal = "incoming attention of the tower's last layer where it can be read, otherwise uniform"
    token_count = "as the checkpoint's processor says"
    video = "compressed"
    companion_arguments = ("visual_pos_masks", "deepstack_visual_embeds")

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self._known = Known()
        self._encoding = Running()
        self._gate: PatchGate | None = None
        self.check_structure()

    def check_structure(self) -> None:
        """Refuse a model that does not follow the pattern."""
        name = type(self.model).__name__
        if not hasattr(self.model, "get_image_features") and self.base is self.model:
            raise CovistError(NO_FEATURES.format(name=name))
        if self.base is self.decoder:
            raise CovistError(MERGES_INSIDE.format(name=name))
        if not self.visual_tokens:
            raise CovistError(NO_PLACEHOLDER.format(name=name, fields=", ".join(PLACEHOLDERS)))

    # -- structure -----------------------------------------------------------------------------------------------------

    @cached_property
    def decoder(self) -> Any:
        """The innermost text model: the module with `layers`."""
        return find_decoder(self.model)

    @cached_property
    def base(self) -> Any:
        """The innermost module that encodes images and holds the decoder."""
        inside = {id(module) for module in self.decoder.modules()}
        holders = [
            module
            for module in self.model.modules()
            if hasattr(module, "get_image_features")
            and (id(module) not in inside or module is self.decoder)
            and any(part is self.decoder for part in module.modules())
        ]
        return holders[-1] if holders else self.model

    @property
    def towers(self) -> list[list[Any]]:
        """The layers of each vision tower."""
        return encoder_layers(self.base, set(map(id, self.decoder.modules())))

    @property
    def encoder_layers(self) -> Sequence[Any]:
        """The layers of all vision towers."""
        return [layer for tower in self.towers for layer in tower]

    @cached_property
    def visual_tokens(self) -> tuple[int, ...]:
        found = (getattr(self.model.config, name, None) for name in PLACEHOLDERS)
        return tuple(dict.fromkeys(token for token in found if isinstance(token, int)))

    def image_mask(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        # ids above the vocabulary have no embedding to compare with
        if input_ids is None and max(self.visual_tokens) >= len(self.base.get_input_embeddings().weight):
            raise CovistError("this model's image token has no embedding: pass input_ids, not inputs_embeds")
        return super().image_mask(input_ids, inputs_embeds)

    def brings_images(self, arguments: dict[str, Any]) -> bool:
        raw = (value for name, value in arguments.items() if name.startswith(RAW))
        return any(value is not None for value in (*self.encoded(arguments).values(), *raw))

    def images_in(self, pieces: list[PlacedSignals], ids: Tensor | None) -> list[PlacedSignals]:
        """Single tokens that stand together in the prompt are one image: some towers know only patches."""
        runs = adjacent(pieces, lambda piece: len(piece.rows) == 1)
        return [run[0].joined(run[1:], partial(_in_a_row, run)) if run[1:] else run[0] for run in runs]

    # -- signals -------------------------------------------------------------------------------------------------------

    def capture(
        self, sink: SignalSink, requests: Sequence[EncoderRequest] = (), requested_now: RequestedNow | None = None
    ) -> list[Removable]:
        inside = set(map(id, self.decoder.modules()))
        outside = [module for module in self.base.modules() if id(module) not in inside]
        towers = self.towers
        layers = {id(part) for tower in towers for layer in tower for part in layer.modules()}
        running = self._encoding
        taps = TowerTaps(towers, self.feeding_state, self.global_layers, requests, requested_now, running)
        around = [one for one in outside if id(one) not in layers and one is not self.base]
        between = CallTap([*around, *taps.feeding], running)

        def after(modality: str) -> Callable[[dict[str, Any], Any], None]:
            def assemble(arguments: dict[str, Any], output: Any) -> None:
                require_configured_features(self.model.config, arguments)
                calls = between.take()
                is_video, spans = modality == "video", self.spans(output, calls)
                views = views_of(arguments, [len(span) for span in spans], is_video)
                every, embeddings = [view for of_image in views for view in of_image], torch.cat(spans)
                seen = taps.take()
                given = [call.given for call in calls]
                pixels = shown_pixels(arguments, self.model.config, every, is_video, given)
                gated = None if self._gate is None else self._gate.passed(views, embeddings, pixels)
                if gated is not None:
                    views, embeddings = gated.kept_views, embeddings[gated.kept]
                folding = Folding(embeddings, [view for one in views for view in one], calls, self._known)
                made = Encoding(views, folding, *seen, self.placed, pixels, is_video, self.exact_attention)
                images = list(made.signals() if gated is None else gated.whole(made.signals(), self.placed))
                for layer, features in self.companions(output).items():
                    _add_companions(images, layer, features)
                sink(images)

            return assemble

        def forget() -> None:
            """What an interrupted call has left."""
            between.take(), taps.take()
            if self._gate is not None:
                self._gate.forget()

        return [
            *taps.handles,
            *between.handles,
            *(
                WrappedMethod(self.base, name, after(modality), running, before=forget)
                for name, modality in MODALITIES.items()
                if hasattr(self.base, name)
            ),
            taps.begin(),
        ]

    def gate(self, rate: PatchRating, method: str) -> Removable:
        towers = self.towers
        tower = packed_tower(self.base, towers[0]) if len(towers) == 1 else None
        if tower is None:
            return super().gate(rate, method)
        self._gate = PatchGate(tower, self._encoding, rate)
        return self._gate

    @property
    def global_layers(self) -> Sequence[int]:
        """The layers of the tower in which a patch sees the whole image, if not all of them are; the last is read."""
        return ()

    @property
    def feeding_state(self) -> int:
        """Which hidden state of a tower feeds the projector: 1 is the output of its first layer, -1 of its last."""
        selected = getattr(self.model.config, "vision_feature_layer", -1)
        last = selected[-1] if isinstance(selected, (list, tuple)) else selected
        return last if isinstance(last, int) else -1

    def spans(self, output: Any, calls: list[ModuleCall]) -> list[Tensor]:
        """The embeddings of each image [n, d], as the prompt receives them."""
        features = getattr(output, "pooler_output", None)
        if features is None:
            features = output[1] if isinstance(output, tuple) and len(output) > 1 else output
            features = getattr(features, "last_hidden_state", features)
        projector = getattr(self.base, "multi_modal_projector", None)
        if projector is not None and not any(call.module is projector for call in calls):  # the model calls it later
            calls.append(ModuleCall(projector, (features,), {}, features, projector.forward(features)))
            features = calls[-1].made
        return [span.detach() for span in pieces_of(features, self.decoder.config.hidden_size)]

    def companions(self, output: Any) -> dict[int, Tensor]:
        """Decoder layer -> features of all images that are added before it, [N, d] (DeepStack)."""
        levels = output[-1] if isinstance(output, tuple) else getattr(output, "deepstack_features", None)
        if not isinstance(levels, (list, tuple)) or not levels or isinstance(levels[0], Tensor) and levels[0].ndim < 2:
            return {}
        width = self.decoder.config.hidden_size
        # a level is added to the output of its decoder layer, that is, before the next one
        return {level + 1: torch.cat(list(pieces_of(one, width))).detach() for level, one in enumerate(levels)}

    def placed(self, embeddings: Tensor) -> Tensor:
        """Embeddings [*, d] as the prompt receives them, if a model changes them on the way."""
        return embeddings


def adjacent(
    pieces: Sequence[PlacedSignals], may_join: Callable[[PlacedSignals], bool] = lambda piece: True
) -> list[list[PlacedSignals]]:
    """Pieces that stand together in the prompt, with nothing between them."""
    runs: list[list[PlacedSignals]] = []
    for piece in pieces:
        if runs and runs[-1][-1].end == piece.start and may_join(runs[-1][-1]) and may_join(piece):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _in_a_row(pieces: Sequence[PlacedSignals]) -> ImageSignals:
    return ImageSignals.join([piece.signals for piece in pieces], Grid(((1, len(pieces)),)))


def find_decoder(model: Any) -> Any:
    """The text model of a model: the first module with `layers`, from `get_decoder()` inwards."""
    named = model.get_decoder() if hasattr(model, "get_decoder") else model
    for module in (named, getattr(named, "language_model", None), getattr(named, "text_model", None)):
        for inner in (module, getattr(module, "model", None), getattr(module, "decoder", None)):
            if isinstance(getattr(inner, "layers", None), nn.ModuleList):
                return inner
    raise CovistError(f"{type(model).__name__} has no text model with `layers`; only decoders can be compressed")


def pieces_of(features: Any, width: int) -> Iterator[Tensor]:
    """[n, d] for each image, from a list of them or from one tensor of any form that ends in [n, d]."""
    if isinstance(features, Tensor):
        if features.shape[-1] != width:
            raise CovistError(f"image features of width {features.shape[-1]} do not fit embeddings of width {width}")
        yield from features.reshape(-1, *features.shape[-2:]) if features.ndim > 2 else [features]
    else:
        for piece in features:
            yield piece.reshape(-1, piece.shape[-1])


def _add_companions(images: Sequence[ImageSignals], layer: int, features: Tensor) -> None:
    for image, part in zip(images, features.split([len(image.span) for image in images]), strict=True):
        image.companions[layer] = image.of_content(part)
