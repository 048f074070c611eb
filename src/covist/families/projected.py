"""Vision towers whose hidden states feed a projector, and the hooks that record signals while images are encoded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor, nn

from covist.contract.encoder import EncoderRequest
from covist.contract.family import Family, Removable, RequestedNow, SignalSink
from covist.contract.signals import ImageSignals
from covist.errors import CovistError
from covist.families.hooks import Running, Scratch, WrappedMethod, require_configured_features
from covist.families.patch_attention import ProjectionTap
from covist.families.reads import ReadableTower, ReadTaps, RecordedReads

LayerRecord = TypeVar("LayerRecord")
Taken = TypeVar("Taken", covariant=True)


class Tap(Protocol[Taken]):
    """Hooks at one encoder layer that keep what it computes until it is taken."""

    handles: list[Removable]

    def take(self) -> Taken: ...


@dataclass(frozen=True)
class TowerOutput(Generic[LayerRecord]):
    """Arguments of a call of `get_image_features` or `get_video_features`, and what the tower computed for it."""

    arguments: dict[str, Any]
    spans: Sequence[Tensor]  # [n, d] each, an image's embeddings as the prompt receives them
    captured: dict[int, LayerRecord]  # encoder layer -> what its tap recorded
    features: Tensor  # [entries of the tower's batch, patches, v] input of the projector
    requested: RecordedReads = field(default_factory=dict)  # what the running method requested from further layers


class ProjectedTowerFamily(Family, Generic[LayerRecord]):
    """A family whose configuration says which hidden states of the vision tower feed the projector."""

    select_strategy: ClassVar[str | None] = None
    """The `vision_feature_select_strategy` that fits the tower; None if the configuration has none."""
    has_class: ClassVar[bool] = False
    """Whether the tower has a class token."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        config = self.model.config
        if self.select_strategy is not None and config.vision_feature_select_strategy != self.select_strategy:
            raise CovistError(
                f"vision_feature_select_strategy must be {self.select_strategy!r}, "
                f"not {config.vision_feature_select_strategy!r}"
            )
        self._require_encoder_layers()

    @property
    @abstractmethod
    def encoder_layers(self) -> Sequence[Any]:
        """The layers of the tower."""

    @property
    def feature_layers(self) -> list[int]:
        """Indices of the encoder layers whose outputs feed the projector; the last of them gives the evidence."""
        count = len(self.encoder_layers)
        # hidden state 0 is the embedding, hidden state i the output of layer i - 1
        return [index % (count + 1) - 1 for index in self._selected]

    @property
    def _selected(self) -> list[int]:
        selected = self.model.config.vision_feature_layer
        return [selected] if isinstance(selected, int) else list(selected)

    def _require_encoder_layers(self) -> None:
        """The projector must read outputs of encoder layers, because evidence comes from a layer's attention."""
        count = len(self.encoder_layers)
        for index in self._selected:
            if not (1 <= index <= count or -count <= index <= -1):
                raise CovistError(
                    f"vision_feature_layer={self.model.config.vision_feature_layer!r}: the vision tower has {count} "
                    f"encoder layers, whose outputs are 1 to {count} or -{count} to -1"
                )

    @abstractmethod
    def tap(self, layer: Any) -> Tap[LayerRecord]:
        """Hooks for one encoder layer."""

    @abstractmethod
    def images(self, output: TowerOutput[LayerRecord]) -> list[ImageSignals]:
        """Split the tower's output into images."""

    def videos(self, output: TowerOutput[LayerRecord]) -> list[ImageSignals]:
        """Split the tower's output for the frames of videos into their segments."""
        raise NotImplementedError(f"{self.name} does not support videos")

    def watched_layers(self, requests: Sequence[EncoderRequest]) -> list[int]:
        """Indices of the encoder layers to tap, including those that methods request (`requests`)."""
        return self.feature_layers[-1:]

    def _attention_tap(self, layer: Any, is_requested: Callable[[], bool]) -> ProjectionTap:
        return ProjectionTap(layer.self_attn, is_requested)

    def capture(
        self, sink: SignalSink, requests: Sequence[EncoderRequest] = (), requested_now: RequestedNow | None = None
    ) -> list[Removable]:
        tower = ReadableTower(self.encoder_layers, self.feature_layers[-1], self._attention_tap, self.has_class)
        reads = ReadTaps(tower, requests, requested_now)
        taps = {index: self.tap(self.encoder_layers[index]) for index in self.watched_layers(requests)}
        scratch, running = Scratch(), Running()

        def remember_features(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            scratch.leave("features", inputs[0].detach())

        def take(arguments: dict[str, Any], output: Any) -> TowerOutput[LayerRecord]:
            require_configured_features(self.model.config, arguments)
            # The signals own what they need from here on; the taps keep nothing of this call.
            captured = {index: tap.take() for index, tap in taps.items()}
            spans = output.pooler_output if hasattr(output, "pooler_output") else output[1]
            return TowerOutput(arguments, spans, captured, scratch.take()["features"], reads.take())

        watched: dict[str, Callable[[dict[str, Any], Any], object]] = {
            "get_image_features": lambda arguments, output: sink(self.images(take(arguments, output))),
            "get_video_features": lambda arguments, output: sink(self.videos(take(arguments, output))),
        }
        return [
            *(handle for tap in taps.values() for handle in tap.handles),
            *reads.handles,
            self.base.multi_modal_projector.register_forward_pre_hook(remember_features),
            *(
                WrappedMethod(self.base, name, after, running)
                for name, after in watched.items()
                if hasattr(self.base, name)
            ),
        ]
