"""Coverage-guided state initialisation: the choice of the tokens that survive the first reduction."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from covist.checks import require_affordable, require_count
from covist.config import CovistConfig
from covist.formulas.anchors import instruction_anchors, protected_tokens
from covist.formulas.coverage import (
    assign_regions,
    balance_regions,
    blend_similarities,
    coverage_share,
    coverage_weights,
    covered_by,
    descriptor_distances,
    uniform_coefficient,
)
from covist.formulas.evidence import check_signals, mix_evidence, selectivity, weigh_image
from covist.formulas.greedy import fill_reserve, greedy_coverage
from covist.formulas.ops import gram, mass_norm, partition, round_half_up, unit_rows
from covist.grid import Grid

MOST_GROWTH = 4


@dataclass(frozen=True, eq=False)
class Selection:
    """The set A and the evidence e of one reduction, over the N tokens of the state before it.

    kept:          surviving tokens, [K], increasing
    evidence:      e, [N]
    anchors:       instruction anchors, [N] bool
    maps:          named [N] maps for drawings: attention, distinctiveness, instruction (if any), combined
    concentration: c of the encoder attention at the initial stage, for the tracker
    coverage:      F of Eq. 5 as a share of what all tokens cover, []; None at later stages
    covered:       how well each token is covered, [N]; None at later stages
    """

    kept: Tensor
    evidence: Tensor
    anchors: Tensor
    maps: dict[str, Tensor] = field(default_factory=dict)
    concentration: float | None = None
    coverage: Tensor | None = None
    covered: Tensor | None = None


@dataclass(frozen=True, eq=False)
class InstructionEvidence:
    """Evidence from the instruction: pi [N], whether it may set anchors, and its lambda_max."""

    distribution: Tensor
    anchors_allowed: bool
    max_weight: float


@dataclass(frozen=True, eq=False)
class WeighedImage:
    """Everything that the initial stage computes for an image independently of the number of tokens to keep.

    maps:          named [N] maps: attention (smoothed), distinctiveness, instruction (if any), combined (e)
    concentration: c of the encoder attention
    asks_anchors:  whether the instruction may set anchors and is selective enough
    affinity:      s, [N, N]
    regions:       the region of every token, [N]
    reference:     running mean of the concentration; None if not yet known
    """

    maps: dict[str, Tensor]
    concentration: float
    asks_anchors: bool
    affinity: Tensor
    regions: Tensor
    config: CovistConfig
    reference: float | None = None

    @property
    def size(self) -> int:
        return self.affinity.shape[0]

    def omega(self, count: int) -> Tensor:
        """The coverage weights [N] of a selection of `count` tokens."""
        uniform = uniform_coefficient(count, self.concentration, self.reference, self.config)
        weights = coverage_weights(self.maps["combined"], uniform, self.config)
        return balance_regions(weights, self.regions, self.config)

    def anchors(self, count: int) -> Tensor:
        """The instruction anchors of a selection of `count` tokens, most relevant first, [any]."""
        if not self.asks_anchors:
            return torch.empty(0, dtype=torch.long, device=self.affinity.device)
        return instruction_anchors(self.maps["instruction"], self.affinity, count, self.config)

    @torch.no_grad()
    def select(self, count: int) -> Selection:
        """Keep `count` of the N tokens."""
        require_count("initial_selection", count, self.size)
        omega, anchors = self.omega(count), self.anchors(count)
        protected = protected_tokens(self.maps["attention"], anchors, count, self.concentration, self.config)
        chosen = _cover(self.affinity, omega, protected, count, self.config)
        _, kept = partition(chosen, count)
        covered = covered_by(self.affinity, kept)
        return Selection(
            kept,
            self.maps["combined"],
            torch.zeros_like(chosen).index_fill_(0, anchors, True),
            self.maps,
            self.concentration,
            coverage_share(self.affinity, omega, covered),
            covered,
        )


def initial_selection(
    attention: Tensor,
    keys: Tensor,
    embeddings: Tensor,
    grid: Grid,
    count: int,
    config: CovistConfig,
    instruction: InstructionEvidence | None = None,
    reference: float | None = None,
) -> tuple[Selection, Tensor]:
    """Choose `count` of N tokens from the encoder's signals -> (selection, affinity s [N, N])."""
    require_count("initial_selection", count, grid.size)
    weighed = weigh(attention, keys, embeddings, grid, config, instruction, reference)
    return weighed.select(count), weighed.affinity


@torch.no_grad()
def weigh(
    attention: Tensor,
    keys: Tensor,
    embeddings: Tensor,
    grid: Grid,
    config: CovistConfig,
    instruction: InstructionEvidence | None = None,
    reference: float | None = None,
) -> WeighedImage:
    """The part of the initial stage that depends on the image and the instruction, but not on the count.

    attention: class-token (or incoming) attention with heads mixed, [N]; keys: encoder keys, [N, k];
    embeddings: projected embeddings, [N, d]; reference: running mean of the concentration, None if not yet known.
    """
    config = grown_with_frames(config, grid.frames)
    require_affordable("initial_selection", grid.size)
    asked = {} if instruction is None else {"instruction": instruction.distribution}
    check_signals("initial_selection", attention, keys, embeddings, grid, **asked)
    unit_keys, unit_embeddings = unit_rows(keys, config.epsilon), unit_rows(embeddings, config.epsilon)
    key_cosines, embedding_cosines = gram(unit_keys), gram(unit_embeddings)
    visual = weigh_image(attention, key_cosines, unit_embeddings, embedding_cosines, grid, config)
    maps = {"attention": visual.attention, "distinctiveness": visual.distinctiveness, "combined": visual.base}
    sigma = torch.zeros_like(visual.departure)
    if instruction is not None:
        maps["instruction"] = mass_norm(instruction.distribution.float())
        sigma = selectivity(maps["instruction"])
        maps["combined"] = mix_evidence(visual.base, maps["instruction"], instruction.max_weight, config, sigma)
    concentration, selective = torch.stack([visual.departure, sigma]).tolist()
    may_anchor = instruction is not None and instruction.anchors_allowed
    # The first region begins where w is largest, which is where e is largest: u adds the same to every token.
    distances = descriptor_distances(key_cosines, embedding_cosines, grid.coordinates(attention.device))
    regions = assign_regions(coverage_weights(maps["combined"], 0.0, config), distances, config.regions)
    return WeighedImage(
        maps,
        concentration,
        may_anchor and selective >= config.anchor_selectivity,
        blend_similarities(key_cosines, embedding_cosines),
        regions,
        config,
        reference,
    )


def grown_with_frames(config: CovistConfig, frames: int) -> CovistConfig:
    """Regions and anchors for a video: they grow with the square root of the frames, up to four times an image's."""
    if frames == 1:
        return config
    growth = min(math.sqrt(frames), MOST_GROWTH)
    return replace(
        config,
        regions=round_half_up(growth * config.regions),
        anchor_limit=round_half_up(growth * config.anchor_limit),
    )


def _cover(affinity: Tensor, omega: Tensor, protected: Tensor, count: int, config: CovistConfig) -> Tensor:
    """From the protected tokens to exactly `count`: greedy coverage, then the reserve -> chosen [N] bool."""
    covered = max(count - round_half_up(config.reserve * count), protected.shape[0])
    chosen = (
        greedy_coverage(affinity, omega, protected, covered) if covered else torch.zeros_like(omega, dtype=torch.bool)
    )
    return fill_reserve(affinity, chosen, count - covered)
