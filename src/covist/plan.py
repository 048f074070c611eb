"""What a budget means for a decoder of a given shape: tokens per layer, FLOPs and cache, without any model."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from covist.config import CovistConfig
from covist.errors import CovistError
from covist.schedule import Schedule, decoder_flops, fixed_schedule, kv_bytes, progressive_schedule, resolve_budget

HALF = 2  # bytes of a cached number in fp16 or bf16


@dataclass(frozen=True)
class Geometry:
    """The sizes of a published model that decide its cost, and the paper's input and budgets for it."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    tokens: int  # content tokens of one image at the paper's resolution
    newlines: int
    budgets: tuple[int, ...]

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads


GEOMETRIES = {
    geometry.name: geometry
    for geometry in (
        Geometry("llava-1.5-7b", 32, 4096, 11008, 32, 32, 576, 0, (192, 128, 64)),
        Geometry("llava-1.5-13b", 40, 5120, 13824, 40, 40, 576, 0, (192, 128, 64)),
        Geometry("llava-next-7b", 32, 4096, 11008, 32, 32, 2880, 48, (640, 320, 160)),
        Geometry("qwen2.5-vl-7b", 28, 3584, 18944, 28, 4, 1296, 0, (512, 256, 128)),
    )
}


def geometry_named(name: str) -> Geometry:
    if name not in GEOMETRIES:
        raise CovistError(f"unknown geometry {name!r}; choose one of {', '.join(GEOMETRIES)}")
    return GEOMETRIES[name]


@dataclass(frozen=True)
class Plan:
    """A schedule and its cost next to the uncompressed decoder."""

    geometry: str
    strategy: str
    budget: int
    tokens: int
    text: float
    newlines: int
    schedule: Schedule
    flops: float
    flops_uncompressed: float
    kv_bytes: float
    kv_bytes_uncompressed: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "geometry": self.geometry,
            "strategy": self.strategy,
            "budget": self.budget,
            "layers": self.schedule.layers,
            "tokens": self.tokens,
            "text": self.text,
            "newlines": self.newlines,
            "tokens_per_layer": list(self.schedule.tokens_per_layer),
            "stages": [{"depth": depth, "tokens": count} for depth, count in self.schedule.stages],
            "mean_tokens": self.schedule.mean,
            "flops": self.flops,
            "flops_uncompressed": self.flops_uncompressed,
            "flops_ratio": self.flops / self.flops_uncompressed,
            "kv_bytes": self.kv_bytes,
            "kv_bytes_uncompressed": self.kv_bytes_uncompressed,
            "kv_ratio": self.kv_bytes / self.kv_bytes_uncompressed,
        }


def make_plan(
    geometry: Geometry,
    budget: int | float | str,
    strategy: str = "fixed",
    *,
    layers: int | None = None,
    tokens: int | None = None,
    newlines: int | None = None,
    text: float = 64.0,
    config: CovistConfig | None = None,
) -> Plan:
    """The schedule of one image of `tokens` content tokens beside `text` text tokens (a mean may be fractional).

    A budget of all tokens or more leaves the image uncompressed.
    """
    layers = geometry.layers if layers is None else layers
    tokens = geometry.tokens if tokens is None else tokens
    newlines = geometry.newlines if newlines is None else newlines
    if not 0 <= text < inf or newlines < 0:
        raise CovistError(f"text and newlines must be finite and not negative, got {text:g} and {newlines}")
    if tokens < 1:
        raise CovistError(f"tokens must be at least 1, got {tokens}")
    count = resolve_budget(budget, tokens)
    if strategy == "fixed":
        schedule = fixed_schedule(layers, count, tokens)
    elif strategy == "pro":
        schedule = progressive_schedule(layers, count, tokens, config)
    else:
        raise CovistError(f"strategy={strategy!r}: choose 'fixed' or 'pro'")
    compressed = [text + newlines + kept for kept in schedule.tokens_per_layer]
    full = [text + newlines + tokens] * layers
    flops, flops_full = (decoder_flops(n, geometry.hidden, geometry.intermediate) for n in (compressed, full))
    cache, cache_full = (kv_bytes(n, geometry.kv_heads, geometry.head_width, HALF) for n in (compressed, full))
    return Plan(geometry.name, strategy, count, tokens, text, newlines, schedule, flops, flops_full, cache, cache_full)
