"""How many tokens each decoder layer sees for a budget, and what they cost (Eq. 19)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any

from covist.config import CovistConfig
from covist.errors import CovistError
from covist.formulas.ops import round_half_up


@dataclass(frozen=True)
class Schedule:
    """`stages` holds (depth, count): before layer `depth` the image is reduced to `count` tokens.

    cache_cut_from: first layer whose cache is cut to the last count after prefill; None leaves in every cache the
        tokens that its layer saw
    counts_prefill: whether the budget counts the tokens that prefill processes, although the cache holds fewer

    >>> schedule = covist.Schedule(layers=4, stages=((0, 64), (3, 16)))
    >>> schedule.tokens_per_layer, schedule.mean
    ((64, 64, 64, 16), 52.0)
    """

    layers: int
    stages: tuple[tuple[int, int], ...]
    cache_cut_from: int | None = None
    counts_prefill: bool = False

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
        """Layer average of the tokens that prefill processes."""
        return sum(self.tokens_per_layer) / self.layers

    @property
    def cached_mean(self) -> float:
        """Layer average of the tokens in the cache."""
        return sum(self.cached_tokens_per_layer) / self.layers

    @property
    def counted_mean(self) -> float:
        """The layer average that the budget counts."""
        return self.mean if self.counts_prefill else self.cached_mean


def fixed_schedule(layers: int, budget: int, tokens: int) -> Schedule:
    """CoViST-Fixed: one reduction before the first layer."""
    _check(layers, budget, tokens)
    return Schedule(layers, ((0, min(budget, tokens)),))


def progressive_schedule(layers: int, budget: int, tokens: int, config: CovistConfig | None = None) -> Schedule:
    """CoViST-Pro: three stages whose layer average is the budget, unless `tokens` limits the first stage."""
    _check(layers, budget, tokens)
    config = config or CovistConfig()
    if budget >= tokens:
        return fixed_schedule(layers, budget, tokens)
    cuts = (0, *progressive_cuts(layers, config), layers)
    sizes = [end - start for start, end in pairwise(cuts)]  # layers of each stage; in a short decoder some have none
    first = min(round_half_up(config.first_stage_ratio * budget), tokens)
    counts = [first, first, max(1, round_half_up(config.last_stage_ratio * budget))]
    # The middle stage makes the layer average the budget; without layers, the last one that has some does.
    solved = 1 if sizes[1] else max(place for place in (0, 2) if sizes[place])
    others = sum(sizes[place] * counts[place] for place in range(3) if place != solved)
    middle = round_half_up((layers * budget - others) / sizes[solved])  # of the solved stage
    least = counts[2] if solved == 1 and sizes[2] else 1
    counts[solved] = min(max(middle, least), first if sizes[0] and solved else tokens)
    return Schedule(layers, tuple((cuts[place], counts[place]) for place in range(3) if sizes[place]))


def progressive_cuts(layers: int, config: CovistConfig) -> tuple[int, int]:
    """The layers before which CoViST-Pro reduces inside the decoder."""
    first, second = (round_half_up(depth * layers) for depth in config.stage_depths)
    return first, second


@dataclass(frozen=True)
class Calibration:
    """How many of an image's tokens each decoder layer needs, as `covist calibrate` measures it.

    kept: for each fitted budget, the share of the tokens that each layer sees; the first layer sees all of them

    >>> Calibration(((1.0, 0.6, 0.2),)).shares(layers=3, level=0.5)
    [1.0, 0.6, 0.2]
    """

    kept: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        try:
            rows = tuple(tuple(float(share) for share in row) for row in self.kept)
        except (TypeError, ValueError):
            raise CovistError("calibration: kept must be lists of shares, one for every layer") from None
        if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
            raise CovistError("calibration: kept must be lists of one length, one share for every layer")
        falling = all(row[0] == 1 and list(row) == sorted(row, reverse=True) and row[-1] >= 0 for row in rows)
        if not falling:
            raise CovistError("calibration: the shares in kept must begin with 1, never rise and never be negative")
        object.__setattr__(self, "kept", rows)

    @classmethod
    def from_dict(cls, values: Any) -> "Calibration":
        """From the fields of a file."""
        if not isinstance(values, Mapping) or set(values) != {"kept"}:
            raise CovistError("calibration must be an object with `kept` only, as `covist calibrate` writes it")
        return cls(values["kept"])

    def to_dict(self) -> dict[str, Any]:
        return {"kept": [list(row) for row in self.kept]}

    def shares(self, layers: int, level: float) -> list[float]:
        """The share of the tokens that each of `layers` layers sees; it grows with the level.

        Level 0 leaves nothing after the first layer and level 1 leaves everything. The fitted budgets are spaced
        evenly between them, smallest first; a level between two of them interpolates linearly.
        """
        ladder = _ladder(self.kept, layers)
        place = level * (len(ladder) - 1)
        lower = min(int(place), len(ladder) - 2)
        fewer, more = ladder[lower : lower + 2]
        return [_between(low, high, place - lower) for low, high in zip(fewer, more, strict=True)]


@lru_cache(maxsize=16)  # a schedule is solved in many steps
def _ladder(kept: Sequence[Sequence[float]], layers: int) -> list[list[float]]:
    """The fitted budgets, with "nothing after the first layer" before them and "everything" after them."""
    fitted = sorted((_stretched(row, layers) for row in kept), key=sum)
    return [[1.0, *[0.0] * (layers - 1)], *fitted, [1.0] * layers]


def _stretched(shares: Sequence[float], layers: int) -> list[float]:
    """The shares of one decoder's layers, interpolated over the depth of another decoder."""
    steps = [layer * (len(shares) - 1) / max(1, layers - 1) for layer in range(layers)]
    return [_between(shares[int(step)], shares[math.ceil(step)], step % 1) for step in steps]


def _between(low: float, high: float, part: float) -> float:
    return low + part * (high - low)


def check_coverage(min_coverage: float | None) -> None:
    """Refuse a coverage that is not a share."""
    is_number = isinstance(min_coverage, Real) and not isinstance(min_coverage, bool)
    if min_coverage is not None and not (is_number and 0 < min_coverage <= 1):
        raise CovistError(f"min_coverage must be a share in (0, 1] (0.9), got {min_coverage!r}")


def decoder_flops(lengths: Iterable[float], hidden: int, intermediate: int) -> float:
    """Eq. 19: matrix-product operations of a LLaMA-style decoder, given the sequence length of each layer."""
    return float(sum(8 * n * hidden**2 + 4 * n**2 * hidden + 6 * n * hidden * intermediate for n in lengths))


def kv_bytes(lengths: Iterable[float], kv_heads: int, head_dim: int, element_size: int) -> float:
    """Bytes of the key/value cache, given the cached length of each layer."""
    return float(sum(2 * n * kv_heads * head_dim * element_size for n in lengths))


def _check(layers: int, budget: int, tokens: int) -> None:
    for name, value in (("layers", layers), ("budget", budget), ("tokens", tokens)):
        if value < 1:
            raise CovistError(f"schedule: {name} must be at least 1, got {value}")
