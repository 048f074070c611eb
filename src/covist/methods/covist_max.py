"""CoViST-Max, covist's own method beyond the paper: similar tokens share one weight, and representatives are means.

It makes four changes to CoViST-Fixed; docs/max.md has the reasons and the measurements.

1. Affinity `s_ij = exp(-2 d_ij / D)`, with d the cosine distance of encoder features and D the mean over all tokens of
   the distance to the farthest other token. The kernel of Eq. 5 is its square. So the scale of "near" follows from how
   far apart unrelated content is for this tower, and no constant is tuned to one tower.
2. Coverage weights `omega_j = 1 / sum_i s_ij^2` replace Eqs. 3 and 4: tokens that show the same content share their
   weight. A large plain background weighs no more than a few small objects, so no core has to protect the objects. The
   weights do not depend on the count or the question, so a smaller count keeps a subset of what a larger one keeps.
3. The weight of a representative is the number of tokens that it represents, instead of Eq. 7. Without a limit, the
   mass of the background is conserved, and a decoder that counts by shares of attention counts correctly.
4. Its content is the mean of these tokens, instead of Eq. 8.

In a video, time counts like content. With t in units of the whole film (or of its segment), the affinity is
`s_ij = exp(-2 (d_ij / D + |t_i - t_j|))`, so a representative stands for what is alike and near in time, and its
position says when. And omega_j is multiplied by `1 - min(s_j-, s_j+)`, where s_j- and s_j+ are the affinities to the
same place one frame before and after, 0 where the film begins or ends: what stays is said rarely, a change when it
happens, and the first and the last frame tell what was and what remains. A film of one frame is an image.

The attention adds log m in every layer and head (Eq. 9 without distance factor and head gains, which showed no gain).
Two settings exist for engines that offer less: `features=embeddings` and `weights=off`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method, MethodInfo, plain_rule
from covist.contract.views import ImageContext, PerImage
from covist.errors import CovistError
from covist.formulas.adaptive import greedy_order, smallest_prefix
from covist.formulas.composition import correspondence
from covist.formulas.content import ContentCoverage
from covist.formulas.greedy import greedy_tokens, is_dense
from covist.methods.registry import register_method
from covist.methods.shared import cluster_means
from covist.reduction import Reduction
from covist.state import VisualState

Features = Literal["encoder", "embeddings"]
PAIRS_AT_ONCE = 2**25
"""Most pairs of tokens whose affinities images may have that are reduced together: 128 MiB in float32."""


@register_method
class CovistMax(Method):
    name = "covist-max"
    writes_content = True
    measures_coverage = True
    info = MethodInfo(
        paper="none: covist's own, after CoViST",
        acts="before the decoder, and log weight on every attention logit",
        signals="encoder features",
        budget="exactly K in every layer",
        criterion="coverage",
        needs=("encoder-features",),
        published=(
            "The method as a whole is not published. Eqs. 5 and 6 are CoViST's. Coverage whose rows are softmaxes of "
            "encoder cosines is MMTok's: it equals our kernel with weights of one over its sum. Means with log size in "
            "the attention are from ToMe and RESTORE."
        ),
        ours=(
            "The width of the kernel follows from the distances in the image. There is no instruction, no class "
            "attention, no protected core and no limit on the weights. In a video, time joins the distance, and what "
            "the frames beside repeat weighs less."
        ),
        checked="reference: a slow literal version, in tests/reference",
    )

    options = {
        "features": "encoder: compare encoder features; embeddings: what the decoder receives, for engines that "
        "show nothing else",
        "weights": "on: the attention adds the log of a representative's weight; off: it adds nothing, for engines "
        "that cannot carry a bias",
    }

    def __init__(self, features: Features = "encoder", weights: bool = True, **options: Any):
        super().__init__(**options)
        if features not in ("encoder", "embeddings"):
            raise CovistError(f"features={features!r}: choose 'encoder' or 'embeddings'")
        if not isinstance(weights, bool):
            raise CovistError(f"weights={weights!r}: choose on or off")
        self.features, self.weights = features, weights
        self._coverages: PerImage[ContentCoverage] = PerImage()
        self._orders: PerImage[list[int]] = PerImage()  # the first tokens of greedy coverage, as far as it was followed

    @property
    def needs(self) -> tuple[str, ...]:
        return ("embeddings",) if self.features == "embeddings" else super().needs

    def count_for(self, image: ImageContext, level: float, least: int, most: int) -> int:
        coverage = self._coverage(image)
        self._orders[image] = smallest_prefix(greedy_order(coverage.affinity, coverage.omega), level, least, most)
        return len(self._orders[image])

    def coverage_gains(self, image: ImageContext) -> Iterator[float]:
        order = self._orders[image] = []
        for token, gain in self._coverage(image).growth():
            order.append(token)
            yield gain

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        coverage, order = self._coverage(image), self._orders.get(image, [])
        if len(order) >= count:
            kept = torch.tensor(sorted(order[:count]), device=coverage.omega.device)
        else:
            kept = _most_covering(coverage, count)
        return _reduced([state], kept[None], coverage.of_several)[0]

    def images_at_once(self, tokens: int, device: torch.device) -> int:
        return max(1, PAIRS_AT_ONCE // tokens**2) if is_dense(device) else 1

    def begin_together(self, images: Sequence[ImageContext], count: int) -> list[Reduction]:
        first, *others = images
        frames = {image.grid.matching_frames for image in images}
        if count == first.grid.size or len(frames) > 1 or any(image in self._orders for image in images):
            return super().begin_together(images, count)
        started = perf_counter()
        coverage = ContentCoverage.of(torch.stack([self._features(image) for image in images]), frames.pop())
        state = first.initial_state()
        states = [state, *(state.replace(**_own(image)) for image in others)]
        made = _reduced(states, _most_covering(coverage, count), coverage)
        each = (perf_counter() - started) / len(images)
        return [replace(one, seconds={"selection": each}) for one in made]

    def _coverage(self, image: ImageContext) -> ContentCoverage:
        if image not in self._coverages:
            self._coverages[image] = ContentCoverage.of(self._features(image), image.grid.matching_frames)
        return self._coverages[image]

    def _features(self, image: ImageContext) -> Tensor:
        """What tokens are compared by, [N, v]."""
        return image.signals.embeddings if self.features == "embeddings" else image.signals.hidden

    def attention_rule(self, decoder: Decoder) -> AttentionRule | None:
        return plain_rule(decoder.layers, decoder.heads) if self.weights else None


def _own(image: ImageContext) -> dict[str, Any]:
    """The fields of an initial state in which images of equal size differ."""
    signals = image.signals
    return {
        "features": signals.embeddings,
        "positions": image.positions,
        "grid": image.grid,
        "companions": signals.companions,
    }


def _most_covering(coverage: ContentCoverage, count: int) -> Tensor:
    """The tokens that greedy coverage takes, in increasing order [..., count]."""
    nothing = torch.empty(*coverage.omega.shape[:-1], 0, dtype=torch.long, device=coverage.omega.device)
    return greedy_tokens(coverage.affinity, coverage.omega, nothing, count).sort(-1).values


def _reduced(states: Sequence[VisualState], kept: Tensor, coverage: ContentCoverage) -> list[Reduction]:
    """The states of some images, reduced to the tokens `kept` [images, K]."""
    pairs = coverage.affinity.gather(-1, kept[:, None].expand(-1, coverage.affinity.shape[-2], -1))  # [images, N, K]
    assignment, closest = correspondence(pairs)
    places = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    assignment.scatter_(1, kept, places)  # itself, even if it has a copy
    # all tokens together cover all, since each covers itself and the weights have sum one
    covered = closest.square()
    share = torch.linalg.vecdot(coverage.omega, covered).clamp(max=1)
    return [
        Reduction(
            state,
            coverage=whole,
            covered=each,
            assignment=assigned,
            maps={"distinctiveness": omega},
            captions={"distinctiveness": "bright: unlike\nthe rest of the image"},
        )
        for state, whole, each, assigned, omega in zip(
            represent(states, kept, assignment), share, covered, assignment, coverage.omega, strict=True
        )
    ]


def represent(states: Sequence[VisualState], kept: Tensor, assignment: Tensor) -> list[VisualState]:
    """Represent the tokens of some images, N of each, by those `kept` [images, K], as `assignment` [images, N] says.

    The tokens of all images are numbered one after the other, so the operators do not depend on their number.
    """
    images, count = kept.shape
    if images > 1:
        numbers = torch.arange(images, device=kept.device)[:, None]
        assignment, kept = assignment + count * numbers, kept + assignment.shape[1] * numbers
    cluster, tokens = assignment.flatten(), kept.flatten()

    def of_all(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts) if images > 1 else parts[0]

    def left(parts: list[Tensor]) -> Sequence[Tensor]:
        return of_all(parts).index_select(0, tokens).split(count)

    def merged(parts: list[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        means, sizes = cluster_means(of_all(parts), cluster, images * count)
        return means.to(parts[0].dtype).split(count), sizes.split(count)

    features, weights = merged([state.features for state in states])
    companions = {layer: merged([state.companions[layer] for state in states])[0] for layer in states[0].companions}
    indices, positions, anchors = (
        left([getattr(state, name) for state in states]) for name in ("indices", "positions", "anchors")
    )
    return [
        VisualState(
            features[number],
            indices[number],
            positions[number],
            weights[number],
            None,
            anchors[number],
            state.grid,
            {layer: parts[number] for layer, parts in companions.items()},
        )
        for number, state in enumerate(states)
    ]
