"""A trial run of a decoder on a few tokens: which layers can be read, how they rotate, and what their caches hold."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from covist.contract.text_config import query_heads
from covist.engine.attention_reader import AttentionReader, learn_recipe
from covist.engine.capture import Capture, LayerInput, capturing, execution_device
from covist.engine.projections import PROJECTIONS, attention_name
from covist.engine.rotation import Axes, FrequencySource, find_source
from covist.errors import CovistError

TRIAL_TOKENS = 5


@dataclass
class LayerReading:
    """What a trial run showed about one layer."""

    reader: AttentionReader | None = None
    source: FrequencySource | None = None  # of the angles that it is given
    rotates: bool | None = None  # whether its attention depends on them; None if unknown
    heads: int | None = None
    width: int = 0  # of a head
    cached: int | None = None  # numbers that its cache holds per token; None if unknown
    unread: str | None = None  # why its attention cannot be read
    dtype: torch.dtype = torch.float32  # in which it computes


@dataclass
class Reading:
    """What a trial run showed about a decoder."""

    layers: list[LayerReading]
    hidden: int
    entry_scale: float = 1.0
    heads: int = 1  # of every layer; 1 if they differ
    without_gains: dict[int, str] = field(default_factory=dict)

    @cached_property
    def energies(self) -> list[Tensor | None]:
        """E of Eq. 10 for every layer, [heads, head width / 2] each; None where there is none."""
        return [self._energy(index, layer.reader) for index, layer in enumerate(self.layers)]

    def _energy(self, index: int, reader: AttentionReader | None) -> Tensor | None:
        try:
            return None if reader is None else reader.energy(self.hidden)
        except Exception as error:  # quantised projections may raise anything
            self.without_gains[index] = f"its projections cannot be probed ({in_words(error)})"
            return None

    @cached_property
    def sources(self) -> list[FrequencySource | None]:
        """Where the frequencies of each layer that rotates are."""
        return [layer.source if layer.rotates else None for layer in self.layers]

    @property
    def widths(self) -> list[int]:
        return [layer.width for layer in self.layers]


class Trial:
    """Runs a decoder's layers on a few tokens. Whatever fails is not read, with a reason."""

    def __init__(self, module: Any, axes: Axes | None):
        self._module, self._hidden = module, module.config.hidden_size
        self._axes = axes
        self._learned: dict[Hashable, LayerReading] = {}
        self._sources: dict[int, FrequencySource | None] = {}

    def run(self) -> Reading:
        """Learn what can be read, from one layer of each kind."""
        reading = Reading([LayerReading() for _ in self._module.layers], self._hidden)
        with capturing(self._module) as capture:
            try:
                embeddings, positions, inputs, twin = self._enter(capture)
            except Exception as error:  # models outside covist's control may raise anything
                for layer in reading.layers:
                    layer.unread = in_words(error)
                return reading
            for index, given in enumerate(inputs):
                reading.layers[index] = self._layer(capture, index, given, twin, positions)
        self._fill_in(reading)
        self._read_entry(reading, embeddings, inputs[0].hidden)
        return reading

    def _enter(self, capture: Capture) -> tuple[Tensor, Tensor, list[LayerInput], Any]:
        """The inputs of all layers for random embeddings, or for those of real tokens if the decoder wants these."""
        embed, device = self._module.get_input_embeddings(), execution_device(self._module)
        dtype = embed.weight.dtype if embed.weight.is_floating_point() else self._module.dtype
        positions = torch.arange(1, 1 + TRIAL_TOKENS, device=device)[None]
        if self._axes is not None:
            positions = positions.expand(self._axes.count, -1, -1)
        drawn = torch.randn(TRIAL_TOKENS, self._hidden, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        try:
            return drawn, positions, *capture.enter(drawn, positions)
        except CovistError:  # Gemma 4 looks up which tokens the embeddings belong to
            tokens = torch.arange(TRIAL_TOKENS, device=device) + len(embed.weight) // 2
            real = embed(tokens).detach()
            return real, positions, *capture.enter(real, positions)

    def _layer(self, capture: Capture, index: int, given: LayerInput, twin: Any, positions: Tensor) -> LayerReading:
        layer = self._module.layers[index]
        angles = id(given.options.get("position_embeddings"))  # most layers are given the same ones
        if angles not in self._sources:
            self._sources[angles] = find_source(self._module, twin, given, positions)
        source = self._sources[angles]
        kind = (_kind(layer), None if source is None else (id(source.module), source.name))
        if kind not in self._learned:
            self._learned[kind] = self._try(capture, index, given)
        found = self._learned[kind]
        reader = found.reader and AttentionReader(layer, found.reader.name, found.reader.recipe, found.dtype)
        return replace(found, reader=reader, source=source)

    def _try(self, capture: Capture, index: int, given: LayerInput) -> LayerReading:
        """What a layer's attention receives, as a recipe if there is one."""
        layer = self._module.layers[index]
        found, name = LayerReading(dtype=given.hidden.dtype), attention_name(layer)
        if name is None:
            return replace(found, cached=0, rotates=False, unread=f"this {type(layer).__name__} has no attention")
        attention, cache = getattr(layer, name), None
        try:
            cache = DynamicCache(config=self._module.config)
            received = capture.attend(index, given, cache)
            found.heads, found.width = len(received.queries), received.queries.shape[-1]
            found.rotates = None
            if not received.normed:
                raise CovistError(f"{type(attention).__name__} has no {', '.join(PROJECTIONS)} of its own")
            found.dtype = received.normed[0].dtype
            recipe = learn_recipe(layer, attention, given.hidden[0], given.rotary, received)
            found.reader, found.unread = AttentionReader(layer, name, recipe, found.dtype), recipe.further
            found.rotates = found.reader.rotates
        except Exception as error:
            found.unread = in_words(error)
            if found.heads is not None:
                found.rotates = self._turns(capture, index, given, received.queries)
        found.cached = _cached_numbers(cache)
        return found

    def _turns(self, capture: Capture, index: int, given: LayerInput, queries: Tensor) -> bool | None:
        """Whether other angles change the queries of a layer whose recipe is unknown; None if it cannot be tried."""
        if given.rotary is None:
            return False
        angles: Any = given.options["position_embeddings"]
        is_complex = isinstance(angles, Tensor)
        still = torch.ones_like(angles) if is_complex else (torch.ones_like(angles[0]), torch.zeros_like(angles[1]))
        try:
            options = {**given.options, "position_embeddings": still}
            cache = DynamicCache(config=self._module.config)
            other = capture.attend(index, replace(given, options=options), cache).queries
        except Exception:
            return None
        return not torch.equal(other, queries)

    def _fill_in(self, reading: Reading) -> None:
        """What layers that could not be tried have in common with others, such as those that share their keys."""
        for index, layer in enumerate(reading.layers):
            module = self._module.layers[index]
            if layer.rotates is None and layer.source is not None:
                name = attention_name(module) or ""
                alike = [
                    other
                    for number, other in enumerate(reading.layers)
                    if other.source is layer.source
                    and type(getattr(self._module.layers[number], name, None)) is type(getattr(module, name, None))
                ]
                layer.rotates = any(other.rotates for other in alike)
                layer.width = layer.width or max((other.width for other in alike), default=0)
        attending = [index for index, layer in enumerate(reading.layers) if layer.cached != 0]
        counts = {reading.layers[index].heads or query_heads(self._module.config, index) for index in attending}
        if len(counts) == 1 and any(layer.reader is not None for layer in reading.layers):
            reading.heads = counts.pop() or 1

    def _read_entry(self, reading: Reading, embeddings: Tensor, hidden: Tensor) -> None:
        """How the decoder changes its input before the first layer; more than a scale is not known."""
        if hidden.shape[-2:] == embeddings.shape:
            ratio = hidden.reshape(-1, *embeddings.shape)[0].float() / embeddings.float()
            reading.entry_scale = float(ratio.median())
            if torch.allclose(ratio, ratio.median(), rtol=0.02):
                return
        first, name = reading.layers[0], type(self._module).__name__
        first.unread = first.unread or f"{name} changes its input before the first layer"


def in_words(error: Exception) -> str:
    """An error in one line."""
    words = " ".join(str(error).split())
    return words if isinstance(error, CovistError) else f"{type(error).__name__}: {words:.160}"


def _cached_numbers(cache: Any) -> int | None:
    """How many numbers per token a trial run has put in a cache; None if it has put none."""
    for layer in getattr(cache, "layers", ()):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if isinstance(keys, Tensor) and isinstance(values, Tensor) and keys.numel():
            return sum(states.shape[1] * states.shape[3] for states in (keys, values))
    return None


def _kind(layer: Any) -> Hashable:
    """A key that is equal for layers whose attention modules differ only in their weights and their number."""
    attention = getattr(layer, attention_name(layer) or "", None)
    if attention is None:
        return (type(layer),)
    settings = {name: value for name, value in vars(attention).items() if isinstance(value, (bool, int, float, str))}
    settings.pop("layer_idx", None)
    present = [name for name, child in attention.named_children() if child is not None]
    return type(layer), type(attention), tuple(sorted(settings.items())), tuple(present)
