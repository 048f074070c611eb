"""A method is a list of reductions plus an attention rule and a position rule; `Method` says all it may ask for."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.encoder import EncoderRequest
from covist.contract.guard import guard, is_own
from covist.contract.kinds import check_words
from covist.contract.views import BlockView, DecoderView, ImageContext, PixelView
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable
from covist.formulas.concentration import ConcentrationTracker
from covist.formulas.content import ContentCoverage
from covist.reduction import Reduction
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

Positions = Literal["keep", "reindex"]
Counts = Literal["average", "nominal"]


@dataclass(frozen=True)
class AttentionRule:
    """The additive attention bias `scale[layer, head] * (log m + log(2 - D))` and where it applies."""

    scale: Tensor  # [layers, heads], or [layers, 1] for all heads
    weights: bool = True  # add log m of visual keys
    distances: tuple[DistanceTable | None, ...] | None = None  # for each layer, None where D is 1; None: for all
    distance_keys: Literal["visual", "all"] = "visual"
    mean_weights: frozenset[int] = frozenset()  # layers in which every key of an image has the mean of their weights
    decoding: AttentionRule | None = None  # the rule for later text, if another than this one, which is for prompts

    def gains(self, layer: int, device: torch.device) -> Tensor:
        """[heads], or [1] if all heads have the same, on a device where they then stay."""
        placed = self._placed.get(device)
        if placed is None:
            placed = self._placed[device] = self.scale.to(device)
        return placed[layer, :1] if self._same_for_all[layer] else placed[layer]

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all layers and heads have the same gain."""
        return len({gain for layer in self._numbers for gain in layer}) == 1

    @cached_property
    def _same_for_all(self) -> list[bool]:
        return [len(set(layer)) == 1 for layer in self._numbers]

    @cached_property
    def _numbers(self) -> list[list[float]]:
        numbers: list[list[float]] = self.scale.tolist()
        return numbers

    @cached_property
    def _placed(self) -> dict[torch.device, Tensor]:
        return {}

    @property
    def while_decoding(self) -> AttentionRule:
        return self.decoding or self

    def distance(self, layer: int) -> DistanceTable | None:
        """log(2 - D) in a layer; None if D is 1 there."""
        return None if self.distances is None else self.distances[layer]

    @property
    def tables(self) -> tuple[DistanceTable | None, ...]:
        """What `distance` may return, each once; layers without a distance factor count as one."""
        return (None,) if self.distances is None else tuple(dict.fromkeys(self.distances))


@dataclass(frozen=True)
class MethodInfo:
    """What `covist methods` shows about a method.

    paper: the publication, or "none"
    acts: where the reduction happens
    signals: what the method reads, in words
    budget: how its budget is counted
    licence: of the original code
    published: what follows the authors' code or paper
    ours: what differs from it or is added, and why
    checked: how the implementation was checked: "golden: ..." against the authors' code, "reference: ..." against a
        literal copy of the formulas
    criterion: what mainly decides which tokens stay, a word of `kinds.CRITERIA`
    needs: signals that the method reads, words of `kinds.NEEDS`; None if unspecified
    made_for: "video" if it compares the frames of a video; an image is a video of one frame to it

    >>> covist.available_methods()["divprune"].info.acts
    'before the decoder'
    """

    paper: str
    acts: str
    signals: str
    budget: str
    licence: str = ""
    published: str = ""
    ours: str = ""
    checked: str = ""
    criterion: str = ""
    needs: tuple[str, ...] | None = None
    made_for: str = "image"

    def __post_init__(self) -> None:
        check_words(self.criterion, self.needs, self.made_for)


class Method(ABC):
    """Base class of all methods. By default, an image is reduced to the budget once, before the first decoder layer.

    What a method may ask of the engine:

    - Before the vision tower: with `rates_patches`, `rate_patches` says which tokens are encoded at all. For everything
      that follows, the image consists of these.
    - Selecting before the decoder: `select` returns the tokens to keep. It reads the vision tower's signals of the
      image, further ones that `encoder_requests` lists, and the question.
    - Merging: `enter` returns a state whose tokens have other content, weights and positions.
    - Together: `begin_together` reduces several images of equal size in operators that they share, as many at once as
      `images_at_once` says. By default they are reduced one by one.
    - Inside the decoder: `schedule` says before which layers an image shrinks, and to how many tokens (none, if it
      says 0); `reduce` does it, and reads the states that entered `observed_layer`.
    - Attention: `attention_rule` says what is added to the logits of which layers, in prompts and in later text.
    - Memory: `memory` makes an object for each image of a prompt, which `reduce` and `see_block` may read and change.
    - Watching: with `watches_blocks`, `see_block` is shown what the blocks of every layer make of the image.
    - Caches: `Schedule.cache_cut_from` leaves in earlier caches, after a prefill, only what the last reduction kept.

    >>> class EverySecond(covist.Method):
    ...     name = "every-second"
    ...     def select(self, image, count):
    ...         return image.positions.argsort()[::2][:count]
    >>> EverySecond().schedule(layers=2, budget=64, tokens=576).tokens_per_layer
    (64, 64)
    """

    name: str
    info: ClassVar[MethodInfo] = MethodInfo("none", "as its schedule says", "not said", "as its schedule says")
    options: ClassVar[Mapping[str, str]] = {
        "positions": "keep: kept tokens stay at their original positions; reindex: the shorter sequence is renumbered"
    }
    """What each option of this class's own constructor means; base classes describe their own."""
    default_positions: ClassVar[Positions] = "keep"
    encoder_requests: tuple[EncoderRequest, ...] = ()
    """What to record from the encoder in addition to the layer that feeds the projector. A number (a layer's index, or
    a fraction of the tower's depth) stands for that layer's class queries and keys, which exist only with a class
    token; an `EncoderRead` works with every family."""
    uses_clip_text: bool = False
    """Whether the method reads CLIP's text space, and so needs `clip=`."""
    measures_coverage: bool = False
    """Whether its first reduction reports how much of the image it covers. Such a method has `count_for`, and supports
    the budget "auto" and `min_coverage`."""
    writes_content: bool = False
    """Whether it merges tokens itself; such a method cannot be combined with another composition."""
    reads_constants: ClassVar[tuple[str, ...]] = ()
    """Parts of `CovistConfig` that the method reads: it accepts their fields as settings, and `config`."""
    counts: Counts = "average"
    """How it interprets a budget: "average" is its layer average; "nominal" names published counts, whose layer average
    differs."""
    rates_patches: bool = False
    """Whether it has `rate_patches`, which needs hooks inside a vision tower that takes any part of an image."""
    watches_blocks: bool = False
    """Whether it has `see_block`, which needs hooks inside the layers."""
    tracker: ConcentrationTracker | None = None
    """Running reference of the attention concentration, if the method has one; freeze it to make results independent
    of history."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not is_own(cls):
            guard(cls)

    def __init__(self, positions: Positions | None = None):
        if positions not in (None, "keep", "reindex"):
            raise CovistError(f"positions={positions!r}: choose 'keep' or 'reindex'")
        self.positions: Positions = positions or self.default_positions

    @property
    def needs(self) -> tuple[str, ...]:
        """Signals that the method reads, words of `kinds.NEEDS`; none if it does not say."""
        return self.info.needs or ()

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        """Tokens of one image in each decoder layer, for a layer-mean `budget` of `tokens`, counted in the cache."""
        return fixed_schedule(layers, budget, tokens)

    def observed_layer(self, depth: int) -> int:
        """The layer whose input the reduction before layer `depth` reads (it may have run already)."""
        return depth

    def count_for(self, image: ImageContext, level: float, least: int, most: int) -> int:
        """The smallest number of tokens from `least` to `most` whose coverage reaches `level`; `most` if none does."""
        raise TypeError(f"{self.name} does not measure coverage")

    def coverage_gains(self, image: ImageContext) -> Iterator[float]:
        """What each further token adds to the coverage of an image, best first; a prompt's images share a total by it.

        By the features of the encoder, whatever is asked: the shares of a prompt are then the same for all methods.
        """
        coverage = ContentCoverage.of(image.signals.hidden, image.grid.matching_frames)
        return (gain for _, gain in coverage.growth())

    def rate_patches(self, pixels: PixelView) -> Tensor:
        """A score for every token [frames, rows, columns], of which at least one in each frame is above zero.

        The patches of the others do not enter the vision tower. `select` finds the scores of the tokens that did in
        `image.signals.patch_scores`.
        """
        raise TypeError(f"{self.name} does not choose patches")

    def begin(self, image: ImageContext, count: int) -> Reduction:
        """The state that enters the decoder, reduced to `count` tokens."""
        state = image.initial_state()
        if count == state.count:
            return Reduction(state, coverage=1.0 if self.measures_coverage else None)
        started = perf_counter() - image.seconds
        outcome = self.enter(image, state, count)
        return replace(outcome, seconds={"selection": perf_counter() - started})

    def images_at_once(self, tokens: int, device: torch.device) -> int:
        """How many images of so many tokens `begin_together` takes; 1 if it would only begin with one after another."""
        return 1

    def begin_together(self, images: Sequence[ImageContext], count: int) -> list[Reduction]:
        """`begin` for several images with equally many tokens, in operators that all of them share."""
        return [self.begin(image, count) for image in images]

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        """Reduce the initial state to `count` tokens; a method that merges overrides this."""
        return Reduction(state.restrict(self.select(image, count).sort().values))

    def select(self, image: ImageContext, count: int) -> Tensor:
        """Indices [count] of the content tokens to keep before the decoder, each once, in any order.

        A method of another package may also return a list of whole numbers, or a mask [N] of the tokens to keep.
        """
        raise TypeError(f"{self.name} does not select before the decoder")

    def memory(self, image: ImageContext) -> object | None:
        """Something that `reduce` finds in `view.memory` at every stage of this image in this prompt, and may change.

        The engine makes it once, when the image enters the decoder, and drops it with the prefill. What concerns
        single tokens is best stored by their index in the image, [N, ...], and looked up with `state.indices`.
        """
        return None

    def is_due(self, count: int, current: int) -> bool:
        """Whether to call `reduce` for an image that has `current` tokens and may keep `count`."""
        return count < current

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        """Reduce a state inside the decoder to `count` tokens, before layer `view.depth`."""
        raise TypeError(f"{self.name} does not reduce inside the decoder")

    def see_block(self, memory: Any, block: BlockView) -> None:
        """What to note in the image's `memory` about a block that has run; every layer shows its blocks."""
        raise TypeError(f"{self.name} does not watch the blocks of a layer")

    def attention_rule(self, decoder: Decoder) -> AttentionRule | None:
        """What to add to the attention logits; None leaves the decoder's attention as it is."""
        return None

    def position_span(self, length: int, budget: int) -> int:
        """How many positions an image span of `length` tokens occupies; the text after it follows."""
        return length


def plain_rule(layers: int, heads: int, device: torch.device | str = "cpu", **options: Any) -> AttentionRule:
    """An attention rule with the same unit scale in every layer and head."""
    return AttentionRule(scale=torch.ones(layers, heads, dtype=torch.float32, device=device), **options)
