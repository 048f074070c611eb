"""A method is a list of reductions plus an attention rule and a position rule.

The engine asks a method four things: how many tokens each layer sees (`schedule`), how an image enters the decoder
(`begin`), how its state shrinks at a later depth (`reduce`), and what is added to the attention logits
(`attention_rule`). A selector that acts before the decoder overrides `select` and inherits the rest; one that also
merges overrides `enter`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.encoder import EncoderWish
from covist.contract.kinds import check_words
from covist.contract.views import DecoderView, ImageContext
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable
from covist.formulas.concentration import ConcentrationTracker
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

Positions = Literal["keep", "reindex"]
Counts = Literal["average", "nominal"]


@dataclass(frozen=True)
class Outcome:
    """What a reduction made of an image: the new state, and what reports and drawings show of it."""

    state: VisualState
    withheld: float = 0.0  # evidence-weighted contribution withheld by the weight limit, Eq. 15
    coverage: float | None = None  # of all tokens by those that stay, Eq. 5; None where a method knows none
    assignment: Tensor | None = None  # [tokens before] index of the representative that stands for each token
    maps: dict[str, Tensor] = field(default_factory=dict)  # evidence maps over the tokens before, by name
    captions: dict[str, str] = field(default_factory=dict)  # what bright means in a map, by the map's name
    seconds: dict[str, float] = field(default_factory=dict)  # "selection", "composition"


@dataclass(frozen=True)
class AttentionRule:
    """The additive attention bias `scale[layer, head] * (log m + log(2 - D))` and where it applies."""

    scale: Tensor  # [layers, heads]
    weights: bool = True  # add log m of visual keys
    distance: DistanceTable | None = None
    distance_keys: Literal["visual", "all"] = "visual"
    distance_in_decoding: bool = True
    layers_without_distance: frozenset[int] = frozenset()  # layers without rotary positions: D = 1 there
    uniform_first_layer: bool = False  # in prefill, layer 0 sees the mean weight of each image, not the recorded ones


@dataclass(frozen=True)
class MethodInfo:
    """What `covist methods` says about a method.

    >>> covist.available_methods()["divprune"].info.acts
    'before the decoder'
    """

    paper: str
    acts: str  # where the reduction happens
    signals: str  # what it reads
    budget: str  # how its budget is counted
    licence: str = ""  # licence situation of the original code
    published: str = ""  # what is as in the authors' code or paper
    ours: str = ""  # what differs from it or is added, and why
    checked: str = ""  # how that was checked: "golden: ..." by the authors' code, "reference: ..." by a literal copy
    goes_by: str = ""  # what mainly decides which tokens stay, a word of `kinds.GOES_BY`
    needs: tuple[str, ...] | None = None  # signals that it reads, words of `kinds.NEEDS`; None leaves it unsaid

    def __post_init__(self) -> None:
        check_words(self.goes_by, self.needs)


class Method(ABC):
    """Base of all methods; the default is a single reduction to the budget before the first decoder layer.

    >>> class EverySecond(covist.Method):
    ...     name = "every-second"
    ...     def select(self, image, count):
    ...         return image.positions.argsort()[::2][:count]
    >>> EverySecond().schedule(layers=2, budget=64, tokens=576).tokens_per_layer
    (64, 64)
    """

    name: str
    info: ClassVar[MethodInfo]
    options: ClassVar[Mapping[str, str]] = {
        "positions": "keep: kept tokens stay at their original positions; reindex: the shorter sequence is renumbered"
    }
    """What each option of this class's own constructor means; those of its bases are described there."""
    default_positions: ClassVar[Positions] = "keep"
    encoder_layers: tuple[EncoderWish, ...] = ()
    """What to capture of the encoder besides the layer that feeds the projector. A number, the index of a layer or a
    fraction of the tower's depth, stands for its class queries and keys, which a family without a class token has not;
    an `EncoderRead` for what every family has."""
    uses_clip_text: bool = False
    """Whether the method reads CLIP's text space (and so wants `clip=`)."""
    measures_coverage: bool = False
    """Whether its first reduction says how much of the image it covers: then it has `count_for` too, so that a budget
    can be "auto" and `min_coverage` be asked for."""
    writes_content: bool = False
    """Whether it merges tokens itself; then it cannot be combined with another composition."""
    reads_constants: ClassVar[tuple[str, ...]] = ()
    """Parts of `CovistConfig` that the method reads: their fields are settings of it, and it takes `config`."""
    counts: Counts = "average"
    """How it takes a budget: as its layer average, or as the name of published counts, whose average is another one."""
    counts_prefill: bool = False
    """Whether its budget counts the tokens that prefill runs over, where the cache holds fewer of them."""
    follows_blocks: bool = False
    """Whether it reads what attention and feed-forward make of the tokens, from the layer before its first reduction
    inside the decoder up to the last one; then it has `change`."""
    measures_only: bool = False
    """Whether it looks at an image at every stage of its schedule, also where that removes nothing."""
    tracker: ConcentrationTracker | None = None
    """Running reference of the attention concentration, if the method has one; freeze it to make results independent
    of history."""

    def __init__(self, positions: Positions | None = None):
        if positions not in (None, "keep", "reindex"):
            raise CovistError(f"positions={positions!r}: choose 'keep' or 'reindex'")
        self.positions: Positions = positions or self.default_positions

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        """Tokens of one image per decoder layer, for a layer-mean `budget` of `tokens`, counted in the cache."""
        return fixed_schedule(layers, budget, tokens)

    def observed_layer(self, depth: int) -> int:
        """The layer whose input the reduction before layer `depth` reads (it may have run already)."""
        return depth

    def count_for(self, image: ImageContext, level: float, least: int, most: int) -> int:
        """The smallest number of tokens from `least` to `most` whose coverage reaches `level`; `most` if none does."""
        raise TypeError(f"{self.name} does not measure coverage")

    def begin(self, image: ImageContext, count: int) -> Outcome:
        """The state that enters the decoder, reduced to `count` tokens."""
        state = image.initial_state()
        if count == state.count:
            return Outcome(state, coverage=1.0 if self.measures_coverage else None)
        started = perf_counter() - image.seconds
        outcome = self.enter(image, state, count)
        return replace(outcome, seconds={"selection": perf_counter() - started})

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Outcome:
        """Shrink the initial state to `count` tokens; a method that merges overrides this one."""
        return Outcome(state.restrict(self.select(image, count).sort().values))

    def select(self, image: ImageContext, count: int) -> Tensor:
        """Indices [count] of the content tokens to keep before the decoder."""
        raise TypeError(f"{self.name} does not select before the decoder")

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Outcome:
        """Shrink a state inside the decoder, before layer `view.depth`."""
        raise TypeError(f"{self.name} does not reduce inside the decoder")

    def change(self, given: Tensor, made: Tensor) -> Tensor:
        """How much a block changes the representatives [K]: what it was given and what it made of it, before the
        residual [K, d]. `DecoderView.change` is the sum over blocks."""
        raise TypeError(f"{self.name} does not follow the blocks of a layer")

    def attention_rule(self, decoder: Decoder) -> AttentionRule | None:
        """What to add to the attention logits; None leaves the decoder's attention as it is."""
        return None

    def position_span(self, length: int, budget: int) -> int:
        """How many positions an image span of `length` tokens occupies; the text after it follows."""
        return length


def plain_rule(layers: int, heads: int, device: torch.device | str = "cpu", **options: Any) -> AttentionRule:
    """An attention rule with the same unit scale in every layer and head."""
    return AttentionRule(scale=torch.ones(layers, heads, dtype=torch.float32, device=device), **options)
