"""What a budget means for a decoder of a given shape, computed without a model: tokens per layer, FLOPs and cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import inf
from typing import Any

from covist.budget import Budget, Written
from covist.errors import CovistError
from covist.schedule import Schedule, decoder_flops, fixed_schedule, progressive_schedule

HALF = 2  # bytes of a cached number in fp16 or bf16
STRATEGIES: dict[str, Callable[[int, int, int], Schedule]] = {
    "fixed": fixed_schedule,
    "pro": progressive_schedule,
}
"""CoViST's executions."""


@dataclass(frozen=True)
class Layer:
    """What a decoder layer has of its own; the defaults are those of full attention, as in the paper's models.

    reach: keys that a query sees at most: a window or a chunk; 0 in layers without attention (linear attention,
        convolutions, Mamba), whose state has the same size whatever the prompt; None for all
    cached: numbers per token in the cache; None for the keys and values of the geometry's heads, 0 for a layer that
        reads the cache of another one. Latent attention caches the latents, in transformers as in serving engines.
    mlp: width of its MLP, if not the geometry's
    """

    kind: str = "full"
    reach: int | None = None
    cached: int | None = None
    mlp: int | None = None

    def seen(self, length: float) -> float:
        """Keys that a query sees in a prompt of `length` tokens, where Eq. 19 counts all of them."""
        return length if self.reach is None else min(length, self.reach)

    def kept(self, length: float) -> float:
        """Tokens that the cache holds after a prompt: a window leaves room for the next token, as in transformers."""
        return length if self.reach is None else min(length, max(0, self.reach - 1))


@dataclass(frozen=True)
class Geometry:
    """The sizes of a published model that determine its cost, with an input and budgets for it.

    A different input for the same model is a different geometry: `replace(geometry, name=..., tokens=...)`.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int  # of the MLP, or of one expert
    heads: int
    kv_heads: int
    tokens: int  # content tokens of the input: one image, or all frames of a video
    markers: int = 0  # tokens of the input that every method keeps: newlines, row breaks, timestamps
    budgets: tuple[int, ...] = ()  # counts; per frame for a video
    tiles: int = 1  # squares of one image that the tower encodes
    frames: int = 1  # more than one for a video
    head_dim: int | None = None  # None: hidden / heads
    experts: int = 0  # of a mixture; 0: one MLP for all tokens
    active_experts: int = 1  # experts that a token is routed to
    shared_experts: int = 0  # width of the experts, or of the MLP, that every token passes through besides
    pattern: tuple[Layer, ...] = (Layer(),)  # of the layers; repeated over the depth of the decoder

    def kinds(self, layers: int | None = None) -> list[Layer]:
        """Every layer, of this decoder or of one with another depth."""
        return list(islice(cycle(self.pattern), self.layers if layers is None else layers))

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def mlp_width(self) -> int:
        """Width of the feed-forward layers that a token passes through, for Eq. 19."""
        return self.active_experts * self.intermediate + self.shared_experts

    @property
    def cached_numbers(self) -> int:
        """Numbers that a layer caches for a token, unless the layer says otherwise."""
        return 2 * self.kv_heads * self.head_width

    def flops(self, lengths: Sequence[float]) -> float:
        """Eq. 19, given the sequence length of each layer.

        The quadratic term counts the keys that a query sees. The other terms stand for the projections of every kind
        of layer: their number differs, but all of them grow with the tokens alone.
        """
        layers = self.kinds(len(lengths))
        widths = [self.mlp_width if layer.mlp is None else layer.mlp for layer in layers]
        whole = sum(decoder_flops([n], self.hidden, width) for n, width in zip(lengths, widths, strict=True))
        unseen = sum(4 * n * (n - layer.seen(n)) * self.hidden for n, layer in zip(lengths, layers, strict=True))
        return whole - unseen

    def kv_bytes(self, lengths: Sequence[float], element_size: int = HALF) -> float:
        """Bytes of the key/value cache after a prompt, given the sequence length of each layer."""
        layers = self.kinds(len(lengths))
        numbers = [self.cached_numbers if layer.cached is None else layer.cached for layer in layers]
        return float(
            sum(layer.kept(n) * own * element_size for n, own, layer in zip(lengths, numbers, layers, strict=True))
        )


@dataclass(frozen=True)
class Plan:
    """A schedule and its cost, compared with the uncompressed decoder."""

    geometry: str
    method: str
    budget: int
    tokens: int
    text: float
    markers: int
    schedule: Schedule
    layer_kinds: tuple[tuple[str, int], ...]  # ("linear", 24), ("full", 8)
    flops: float
    flops_uncompressed: float
    kv_bytes: float
    kv_bytes_uncompressed: float

    @property
    def strategy(self) -> str | None:
        """`fixed` or `pro` if the method is CoViST."""
        return next((name for name in STRATEGIES if self.method == f"covist-{name}"), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "geometry": self.geometry,
            "method": self.method,
            "strategy": self.strategy,
            "budget": self.budget,
            "layers": self.schedule.layers,
            "layer_kinds": dict(self.layer_kinds),
            "tokens": self.tokens,
            "text": self.text,
            "newlines": self.markers,
            "tokens_per_layer": list(self.schedule.tokens_per_layer),
            "stages": [{"depth": depth, "tokens": count} for depth, count in self.schedule.stages],
            "mean_tokens": self.schedule.mean,
            "mean_cached_tokens": self.schedule.cached_mean,
            "flops": self.flops,
            "flops_uncompressed": self.flops_uncompressed,
            "flops_ratio": self.flops / self.flops_uncompressed,
            "kv_bytes": self.kv_bytes,
            "kv_bytes_uncompressed": self.kv_bytes_uncompressed,
            "kv_ratio": self.kv_bytes / self.kv_bytes_uncompressed,
        }


def make_plan(
    geometry: Geometry,
    budget: Budget | Written,
    strategy: str = "fixed",
    *,
    layers: int | None = None,
    tokens: int | None = None,
    markers: int | None = None,
    text: float = 64.0,
) -> Plan:
    """The plan for one image or video of `tokens` content tokens and `text` text tokens (which may be a mean).

    A budget of all tokens or more leaves the image uncompressed. For a video, a count is per frame.
    """
    if strategy not in STRATEGIES:
        raise CovistError(f"strategy={strategy!r}: choose 'fixed' or 'pro'")
    sizes = {"layers": layers, "tokens": tokens, "markers": markers}
    return plan_of(f"covist-{strategy}", STRATEGIES[strategy], geometry, Budget.parse(budget), text=text, **sizes)


def plan_of(
    method: str,
    schedule_for: Callable[[int, int, int], Schedule],
    geometry: Geometry,
    budget: Budget,
    *,
    layers: int | None = None,
    tokens: int | None = None,
    markers: int | None = None,
    text: float = 64.0,
) -> Plan:
    """`make_plan` for any method, given its schedule as a function of (layers, budget, tokens)."""
    layers = geometry.layers if layers is None else layers
    tokens = geometry.tokens if tokens is None else tokens
    markers = geometry.markers if markers is None else markers
    if not 0 <= text < inf or markers < 0:
        raise CovistError(f"text and markers must be finite and not negative, got {text:g} and {markers}")
    if tokens < 1:
        raise CovistError(f"tokens must be at least 1, got {tokens}")
    count = budget.count_for(tokens, geometry.frames)
    schedule = schedule_for(layers, count, tokens)
    others = text + markers
    full = [others + tokens] * layers
    prefill = [others + kept for kept in schedule.tokens_per_layer]
    cached = [others + kept for kept in schedule.cached_tokens_per_layer]
    flops, flops_full = (geometry.flops(lengths) for lengths in (prefill, full))
    cache, cache_full = (geometry.kv_bytes(lengths) for lengths in (cached, full))
    kinds = tuple(Counter(layer.kind for layer in geometry.kinds(layers)).items())
    inputs = (geometry.name, method, count, tokens, text, markers)
    return Plan(*inputs, schedule, kinds, flops, flops_full, cache, cache_full)
