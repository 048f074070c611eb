"""What methods request from single layers of a vision tower: recorded during encoding, laid out when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderRead, EncoderRequest
from covist.contract.family import Removable, RequestedNow
from covist.families.hooks import Scratch
from covist.families.patch_attention import PatchAttention

RecordedReads = dict[EncoderRead, list[Any]]
"""Read -> a `PatchAttention` for each entry of the tower's batch (received, values), or the states
[entries, patches, v] of each layer (states), or the input of the first layer (entry)."""


class AttentionTap(Protocol):
    """Hooks at one encoder layer that keep its queries, keys and values until they are taken."""

    handles: list[Removable]

    def take(self) -> Any: ...


@dataclass(frozen=True)
class ReadableTower:
    """The layers of a vision tower, and how they are read."""

    layers: Sequence[Any]
    feeding: int  # index of the layer whose output feeds the projector
    tap: Callable[[Any, Callable[[], bool]], AttentionTap]  # (layer, whether a method requests it now)
    has_class: bool = False
    global_layers: Sequence[int] = ()  # layers in which a patch sees the whole image; empty means all

    def index_of(self, read: EncoderRead) -> int:
        """The layer that a read means; attention is read in the nearest layer that attends over the whole image."""
        index = read.layer(len(self.layers), self.feeding, self.has_class)
        if read.what not in ("received", "values") or not self.global_layers:
            return index
        return min(self.global_layers, key=lambda other: abs(other - index))


class ReadTaps:
    """Hooks for all reads among the methods' requests; a read is recorded only while it is requested."""

    def __init__(self, tower: ReadableTower, requests: Iterable[EncoderRequest], requested_now: RequestedNow | None):
        self.handles: list[Removable] = []
        self._takers: dict[EncoderRead, tuple[Callable[[], bool], Callable[[], Any]]] = {}
        for read in requests:
            if isinstance(read, EncoderRead):
                is_requested = partial(_is_among, read, requested_now)
                tap = self._tap(tower, read, is_requested)
                self.handles += tap.handles
                self._takers[read] = is_requested, tap.take

    @staticmethod
    def _tap(tower: ReadableTower, read: EncoderRead, is_requested: Callable[[], bool]) -> AttentionTap:
        index = tower.index_of(read)
        if read.what == "states":
            return _StatesTap(tower.layers[index : tower.feeding + 1], is_requested)
        if read.what == "entry":
            return _StatesTap(tower.layers[:1], is_requested, outputs=False)
        return tower.tap(tower.layers[index], is_requested)

    def take(self) -> RecordedReads:
        """Return the reads of the images that were just encoded, and forget them."""
        return {read: take() for read, (is_requested, take) in self._takers.items() if is_requested()}


def _is_among(read: EncoderRead, requested_now: RequestedNow | None) -> bool:
    return requested_now is None or read in requested_now()


def of_entries(recorded: RecordedReads, entries: slice) -> RecordedReads:
    """The reads of some entries of the tower's batch."""
    return {
        read: raw[entries] if isinstance(raw[0], PatchAttention) else [states[entries] for states in raw]
        for read, raw in recorded.items()
    }


class _StatesTap:
    """Keeps the input of the first of some layers and, if `outputs`, the output of each of them."""

    def __init__(self, layers: Sequence[nn.Module], is_requested: Callable[[], bool], outputs: bool = True):
        self._scratch = Scratch(is_requested)
        self.handles: list[Removable] = [
            layers[0].register_forward_pre_hook(self._keep_input, with_kwargs=True),
            *(
                layer.register_forward_hook(partial(self._keep_output, number))
                for number, layer in enumerate(layers, start=1)
                if outputs
            ),
        ]

    def _keep_input(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self._scratch.leave("0", (args[0] if args else kwargs["hidden_states"]).detach())

    def _keep_output(self, number: int, module: nn.Module, args: tuple, output: Any) -> None:
        self._scratch.leave(str(number), (output[0] if isinstance(output, tuple) else output).detach())

    def take(self) -> list[Tensor]:
        return list(self._scratch.take().values())


@dataclass(frozen=True)
class Placing:
    """How values of an image's patches become values of its content tokens.

    masses, means and states turn [entries, patches, ...], of the tiles or frames of the image, into [N, ...]: for a
    token of several patches, their total attention, their mean, and their states side by side.
    """

    query_patches: Callable[[], list[Tensor]]  # of an entry, head by head
    masses: Callable[[Tensor], Tensor]
    means: Callable[[Tensor], Tensor]
    states: Callable[[Tensor], Tensor]
    class_tokens: int = 0  # rows before the patches of an entry that take part in its attention

    def reads(self, recorded: RecordedReads) -> dict[EncoderRead, Callable[[], list[Tensor]]]:
        """`ImageSignals.requested` of an image, from its recorded reads."""
        made: dict[str, Callable[[list[Any]], list[Tensor]]] = {
            "received": self._received,
            "values": self._values,
            "states": self._states,
        }
        return {read: partial(made[read.what], raw) for read, raw in recorded.items() if read.what in made}

    def _received(self, raw: list[PatchAttention]) -> list[Tensor]:
        shares = [self._shares(entry) for entry in raw]
        return [self.masses(torch.stack(share)) for share in zip(*shares, strict=True)]

    def _shares(self, entry: PatchAttention) -> tuple[Tensor, Tensor, Tensor]:
        """Attention that each patch receives from all tokens, from itself and from the class token, [patches] each."""
        received, from_itself = entry.shares(self.query_patches())
        of_class = torch.zeros_like(received)
        if self.class_tokens:
            first = torch.zeros(1, dtype=torch.long, device=received.device)
            of_class = entry.incoming([first]) / len(received)
        return received[self.class_tokens :], from_itself[self.class_tokens :], of_class[self.class_tokens :]

    def _values(self, raw: list[PatchAttention]) -> list[Tensor]:
        values = [entry.values[self.class_tokens :].float() for entry in raw if entry.values is not None]
        heads = values[0].shape[1]
        return [self.means(torch.stack(values).flatten(2)).unflatten(-1, (heads, -1))]

    def _states(self, raw: list[Tensor]) -> list[Tensor]:
        return [self.states(states[:, self.class_tokens :]) for states in raw]
