"""How many tokens each decoder layer sees, how a budget is read, and what it costs (Eq. 19)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from covist.config import CovistConfig
from covist.errors import CovistError
from covist.formulas.ops import round_half_up


@dataclass(frozen=True)
class Schedule:
    """`stages` holds (depth, count): before layer `depth` the image is reduced to `count` tokens.

    cache_cut_from: first layer whose cache is cut back to the last count once prefill is done; None leaves in every
        cache what the layer saw
    """

    layers: int
    stages: tuple[tuple[int, int], ...]
    cache_cut_from: int | None = None

    @cached_property
    def tokens_per_layer(self) -> tuple[int, ...]:
        ends = [depth for depth, _ in self.stages[1:]] + [self.layers]
        return tuple(count for (depth, count), end in zip(self.stages, ends, strict=True) for _ in range(end - depth))

    @cached_property
    def cached_tokens_per_layer(self) -> tuple[int, ...]:
        """Tokens that each layer's cache holds after prefill, for decoding."""
        if self.cache_cut_from is None:
            return self.tokens_per_layer
        whole, last = self.tokens_per_layer[: self.cache_cut_from], self.tokens_per_layer[-1]
        return whole + (last,) * (self.layers - len(whole))

    @property
    def mean(self) -> float:
        """Layer average of the tokens that prefill runs over."""
        return sum(self.tokens_per_layer) / self.layers

    @property
    def cached_mean(self) -> float:
        """Layer average of the tokens in the cache: what a budget counts."""
        return sum(self.cached_tokens_per_layer) / self.layers


def fixed_schedule(layers: int, budget: int, tokens: int) -> Schedule:
    """CoViST-Fixed: one reduction before the first layer."""
    _check(layers, budget, tokens)
    return Schedule(layers, ((0, min(budget, tokens)),))


def progressive_schedule(layers: int, budget: int, tokens: int, config: CovistConfig | None = None) -> Schedule:
    """CoViST-Pro: three stages whose layer average is the budget, as far as `tokens` allows."""
    _check(layers, budget, tokens)
    config = config or CovistConfig()
    if budget >= tokens:
        return fixed_schedule(layers, budget, tokens)
    first_cut, second_cut = progressive_cuts(layers, config)
    first = min(round_half_up(config.first_stage_ratio * budget), tokens)
    last = max(1, round_half_up(config.last_stage_ratio * budget))
    remaining = layers * budget - first_cut * first - (layers - second_cut) * last
    middle = round_half_up(remaining / (second_cut - first_cut)) if second_cut > first_cut else last
    middle = min(max(middle, last), first)
    cuts = (0, first_cut, second_cut, layers)
    counts = (first, middle, last)
    # In very shallow decoders a stage may have no layer at all; then it does not exist.
    return Schedule(layers, tuple((cuts[i], counts[i]) for i in range(3) if cuts[i] < cuts[i + 1]))


def progressive_cuts(layers: int, config: CovistConfig) -> tuple[int, int]:
    """The layers before which CoViST-Pro reduces inside the decoder."""
    first, second = (round_half_up(depth * layers) for depth in config.stage_depths)
    return first, second


def check_budget(budget: int | float | str) -> None:
    """Refuse what is no budget at all, before any image is there to resolve it for."""
    resolve_budget(budget, 1)


def resolve_budget(budget: int | float | str, tokens: int, frames: int = 1) -> int:
    """A budget as a token count: `64`, `"64"`, `0.11` or `"11%"` of `tokens`.

    In a video of several frames a count is meant for each frame, a share for all tokens. A budget of all tokens or
    more leaves the image uncompressed: all of them are kept.
    """
    value: Any = budget
    if isinstance(budget, str):
        text = budget.strip()
        try:
            value = float(text[:-1]) / 100 if text.endswith("%") else int(text) if text.isdigit() else float(text)
        except ValueError:
            value = None
    is_count = isinstance(value, Integral)  # numpy's integers as well
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not number > 0 or not (is_count or number <= 1):
        allowed = 'a positive number of tokens (64), a fraction in (0, 1] (0.11) or a percentage ("11%")'
        raise CovistError(f"budget must be {allowed}, got {budget!r}")
    return min(int(number) * frames if is_count else max(1, round_half_up(number * tokens)), tokens)


def decoder_flops(lengths: Iterable[float], hidden: int, intermediate: int) -> float:
    """Eq. 19: matrix-product operations of a LLaMA-style decoder over the sequence length of each layer."""
    return float(sum(8 * n * hidden**2 + 4 * n**2 * hidden + 6 * n * hidden * intermediate for n in lengths))


def kv_bytes(lengths: Iterable[float], kv_heads: int, head_dim: int, element_size: int) -> float:
    """Bytes of the key/value cache over the cached length of each layer."""
    return float(sum(2 * n * kv_heads * head_dim * element_size for n in lengths))


def _check(layers: int, budget: int, tokens: int) -> None:
    for name, value in (("layers", layers), ("budget", budget), ("tokens", tokens)):
        if value < 1:
            raise CovistError(f"schedule: {name} must be at least 1, got {value}")
