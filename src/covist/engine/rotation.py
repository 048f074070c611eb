"""The rotary frequencies of a decoder's layers: where they come from, on which axis they turn, when they change.

Some decoders have several rotary tables, for example one for layers with a sliding window and one for the others. Which
one a layer uses is found by comparing the angles that it received in a trial run with every table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from covist.contract.decoder import Rotary
from covist.engine.capture import LayerInput, cos_and_sin, has_frequencies, twin
from covist.formulas.attention import DistanceTable

Layout = Literal["halves", "neighbours", "once"]
LAYOUTS: tuple[Layout, ...] = ("halves", "neighbours", "once")
"""How an angle per pair is laid out over the dimensions of a head."""

FREQUENCIES, ORIGINAL = "inv_freq", "original_inv_freq"
SECTIONS = "mrope_section"
"""The attribute by which a rotary module of transformers says that its positions have several axes."""


@dataclass(frozen=True)
class FrequencySource:
    """The frequencies that one layer rotates by: a buffer of a rotary module, or numbers derived from its angles."""

    layout: Layout
    scale: float  # of cos and sin
    module: Any = None
    name: str = ""  # of the buffer
    derived: Tensor | None = None
    exact: bool = False  # whether the layer gets what the rotary module returns

    def read(self) -> Tensor:
        """The frequencies [pairs] as they are now, in float32."""
        return self.derived if self.derived is not None else getattr(self.module, self.name).float()

    @property
    def buffer(self) -> Tensor | None:
        return None if self.module is None else self.module._buffers.get(self.name)

    def angles(self, hidden: Tensor, positions: Tensor) -> Rotary | None:
        """cos and sin [batch, tokens, rotary width] for positions as the rotary module takes them."""
        if self.exact:
            kind = self.name[: -len(FREQUENCIES)].rstrip("_")
            return cos_and_sin(self.module(hidden, positions, *([kind] if kind else [])))
        angles = _laid_out(positions[..., None].float() * self.read().to(hidden.device), self.layout)
        return (angles.cos() * self.scale).to(hidden.dtype), (angles.sin() * self.scale).to(hidden.dtype)


def find_source(decoder: Any, twin: Any, given: LayerInput, positions: Tensor) -> FrequencySource | None:
    """Where the angles come from that a layer was `given` for tokens at positions [..., 1, tokens] from 1 on.

    twin: the copy of the decoder that ran, since some rotary modules change their frequencies while they run
    """
    if given.rotary is None:
        return None
    cos, sin = (part.detach().double().cpu() for part in given.rotary)
    length = torch.hypot(cos, sin)
    scale = float(length.mean())
    if not 1e-3 < scale < 1e3:
        return None
    cos, sin = cos / length, sin / length
    tolerance = max(1e-3, 8 * torch.finfo(given.rotary[0].dtype).eps)
    numbers = positions.reshape(-1, positions.shape[-1])[0, :, None].double().cpu()
    best: tuple[float, FrequencySource] | None = None
    for child, module in twin.named_children():
        for name in _tables(module):
            for layout in LAYOUTS:
                expected = _laid_out(numbers * getattr(module, name).detach().double().cpu(), layout)
                if expected.shape != cos.shape:
                    continue
                error = float(torch.maximum((expected.cos() - cos).abs().amax(), (expected.sin() - sin).abs().amax()))
                if error <= tolerance and (best is None or error < best[0]):
                    best = error, FrequencySource(layout, scale, getattr(decoder, child), name)
    if best is None:
        return _derived(cos[0], sin[0], scale, tolerance)
    found = best[1]
    returned = replace(found, module=_owner(decoder, twin, found.module), exact=True).angles(given.hidden, positions)
    same = returned is not None and all(
        torch.equal(ours.reshape(-1, *theirs.shape)[0], theirs)
        for ours, theirs in zip(returned, given.rotary, strict=True)
    )
    return replace(found, exact=same)


def _owner(decoder: Any, twin: Any, module: Any) -> Any:
    """The twin of a rotary module."""
    return next(getattr(twin, name) for name, child in decoder.named_children() if child is module)


def _derived(cos: Tensor, sin: Tensor, scale: float, tolerance: float) -> FrequencySource | None:
    """Frequencies from the angles at position 1, [w]; None if no layout fits."""
    full = torch.atan2(sin, cos)
    middle = len(full) // 2
    pairs: tuple[tuple[Layout, Tensor, Tensor], ...] = (
        ("halves", full[:middle], full[middle:]),
        ("neighbours", full[::2], full[1::2]),
    )
    for layout, first, second in pairs:
        if len(first) == len(second) and torch.allclose(first, second, atol=tolerance):
            return FrequencySource(layout, scale, derived=first.float())
    return None


def _laid_out(angles: Tensor, layout: Layout) -> Tensor:
    if layout == "once":
        return angles
    return torch.cat([angles, angles], -1) if layout == "halves" else angles.repeat_interleave(2, -1)


def _tables(module: nn.Module) -> list[str]:
    """Names of the buffers of a rotary module that hold the frequencies in use."""
    names = module._buffers if has_frequencies(module) else ()
    return [name for name in names if name.endswith(FREQUENCIES) and not name.endswith(ORIGINAL)]


@dataclass(frozen=True)
class Rotation:
    """The frequencies of all layers at one time, with what follows from them.

    frequencies: [head width / 2] for each layer, 0 for pairs that do not rotate; None for a layer that does not rotate
    """

    frequencies: tuple[Tensor | None, ...]
    distances: tuple[DistanceTable | None, ...]
    stamp: tuple[tuple[Tensor | None, int], ...]

    @classmethod
    def read(
        cls,
        sources: Sequence[FrequencySource | None],
        widths: Sequence[int],
        axes: Axes | None,
        before: Rotation | None = None,
    ) -> Rotation:
        """Read the sources; layers with equal frequencies share one table, also with an earlier reading."""
        stamp = stamp_of(sources)  # first: a change during the reading is noticed at the next look
        frequencies: list[Tensor | None] = []
        tables = [] if before is None else [table for table in before.distances if table is not None]
        distances: list[DistanceTable | None] = []
        for source, width in zip(sources, widths, strict=True):
            if source is None:
                frequencies.append(None)
                distances.append(None)
                continue
            turning = source.read()
            padded = torch.cat([turning, turning.new_zeros(max(0, width // 2 - len(turning)))])
            frequencies.append(padded)
            # any axis: the further pairs do not rotate
            own = None if axes is None else [*axes.of_frequencies, *[0] * (len(padded) - len(axes.of_frequencies))]
            values = padded.detach().double().cpu()
            table = next((known for known in tables if torch.equal(known.inverse_frequencies, values)), None)
            if table is None:
                table = DistanceTable(padded, own)
                tables.append(table)
            distances.append(table)
        return cls(tuple(frequencies), tuple(distances), stamp)

    def is_current(self, sources: Sequence[FrequencySource | None]) -> bool:
        """Whether the buffers are still the same; nothing is read from a device."""
        now = stamp_of(sources)
        return len(now) == len(self.stamp) and all(
            ours is theirs and version == known
            for (ours, version), (theirs, known) in zip(now, self.stamp, strict=True)
        )


def stamp_of(sources: Sequence[FrequencySource | None]) -> tuple[tuple[Tensor | None, int], ...]:
    """The distinct buffers of the sources and how often each was written to."""
    buffers = {id(buffer): buffer for source in sources if source is not None and (buffer := source.buffer) is not None}
    return tuple((buffer, 0 if buffer.is_inference() else buffer._version) for buffer in buffers.values())


# -- multidimensional RoPE: which axis of a position each frequency belongs to -----------------------------------------


@dataclass(frozen=True)
class Axes:
    """The axes of a position, and which of them turns each frequency."""

    count: int
    of_frequencies: list[int]


def rotary_axes(decoder: Any) -> Axes | None:
    """The axes of a decoder's positions; None if a position is one number."""
    rotary = next((child for child in decoder.children() if getattr(child, SECTIONS, None)), None)
    return None if rotary is None else axes_of(rotary)


@torch.no_grad()
def axes_of(module: Any) -> Axes | None:
    """The axes of a rotary module's positions; None if a position is one number.

    A token that is at 1 on one axis and at 0 on all others is turned by the frequencies of this axis alone.
    """
    sections = getattr(module, SECTIONS, None)
    if not sections:
        return None
    # Several tables have several sections; they differ in their frequencies, not in the order of their axes.
    kinds = [next(iter(sections))] if isinstance(sections, dict) else []
    axes = len(sections[kinds[0]] if kinds else sections)
    device = next(buffer.device for buffer in module.buffers())
    positions = torch.eye(axes, device=device)[:, None]  # [axes, 1, tokens]
    # a twin, because rotary modules may replace their frequencies while they run
    angles = cos_and_sin(twin(module)(torch.zeros(1, axes, 1, device=device), positions, *kinds))
    if angles is None:
        return None
    return Axes(axes, _per_frequency(torch.atan2(angles[1], angles[0]).reshape(axes, -1).abs()))


def _per_frequency(angles: Tensor) -> list[int]:
    """From angles [tokens, rotary width], where a token turns on its own axis only."""
    owners = angles.argmax(0)
    halves = owners.unflatten(0, (2, -1))
    in_halves = torch.equal(halves[0], halves[1]) or not torch.equal(owners[::2], owners[1::2])
    frequencies: list[int] = (halves[0] if in_halves else owners[::2]).tolist()
    return frequencies
