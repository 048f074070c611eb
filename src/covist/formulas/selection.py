"""Coverage-guided state initialisation: which tokens survive the first reduction, and why."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from covist.checks import require_count, require_evidence, require_shape
from covist.config import CovistConfig
from covist.formulas.anchors import instruction_anchors, protected_tokens
from covist.formulas.coverage import blend_similarities, coverage_weights, region_weights, uniform_coefficient
from covist.formulas.evidence import check_signals, mix_evidence, nearest_neighbours, selectivity, weigh_image
from covist.formulas.greedy import fill_reserve, greedy_coverage
from covist.formulas.ops import mass_norm, round_half_up, unit_rows
from covist.grid import Grid


@dataclass(frozen=True, eq=False)
class Selection:
    """The set A and the evidence e of one reduction, over the N tokens of the state before it.

    kept:          surviving tokens, [K], increasing
    evidence:      e, [N]
    anchors:       instruction anchors, [N] bool
    maps:          named [N] maps for pictures: attention, distinctiveness, instruction (if any), combined
    concentration: c of the encoder attention at the initial stage, for the tracker
    """

    kept: Tensor
    evidence: Tensor
    anchors: Tensor
    maps: dict[str, Tensor] = field(default_factory=dict)
    concentration: float | None = None


@dataclass(frozen=True, eq=False)
class InstructionEvidence:
    """What the instruction asks of the image: pi [N], whether it may set anchors, and its lambda_max."""

    distribution: Tensor
    anchors_allowed: bool
    max_weight: float


@torch.no_grad()
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
    """Choose `count` of N tokens from the encoder's signals -> (selection, affinity s [N, N]).

    attention: class-token (or incoming) attention with heads mixed, [N]; keys: encoder keys, [N, k];
    embeddings: projected embeddings, [N, d]; reference: running mean of the concentration, None = not yet known.
    """
    check_signals("initial_selection", attention, keys, embeddings, grid)
    _check_request(count, instruction, grid.size)
    unit_keys, unit_embeddings = unit_rows(keys, config.epsilon), unit_rows(embeddings, config.epsilon)
    key_cosines = unit_keys @ unit_keys.T  # [N, N], becomes the affinity below
    neighbours = nearest_neighbours(key_cosines)
    affinity = blend_similarities(key_cosines, unit_embeddings)

    visual = weigh_image(attention, neighbours, unit_embeddings, grid, config)
    maps = {"attention": visual.attention, "distinctiveness": visual.distinctiveness, "combined": visual.base}
    anchors = torch.empty(0, dtype=torch.long, device=attention.device)
    if instruction is not None:
        maps["instruction"] = mass_norm(instruction.distribution.float())
        maps["combined"] = mix_evidence(visual.base, maps["instruction"], instruction.max_weight, config)
        if instruction.anchors_allowed and selectivity(maps["instruction"]) >= config.anchor_selectivity:
            anchors = instruction_anchors(maps["instruction"], affinity, count, config)

    uniform = uniform_coefficient(count, visual.concentration, reference, config)
    weights = coverage_weights(maps["combined"], uniform, config)
    omega = region_weights(weights, unit_keys, unit_embeddings, grid.coordinates(attention.device), config)
    protected = protected_tokens(visual.attention, anchors, count, visual.concentration, config)
    chosen = _cover(affinity, omega, protected, count, config)
    is_anchor = torch.zeros_like(chosen)
    is_anchor[anchors] = True
    return Selection(chosen.nonzero()[:, 0], maps["combined"], is_anchor, maps, visual.concentration), affinity


def _cover(affinity: Tensor, omega: Tensor, protected: Tensor, count: int, config: CovistConfig) -> Tensor:
    """From the protected tokens to exactly `count`: greedy coverage, then the reserve -> chosen [N] bool."""
    covered = max(count - round_half_up(config.reserve * count), protected.shape[0])
    chosen = (
        greedy_coverage(affinity, omega, protected, covered) if covered else torch.zeros_like(omega, dtype=torch.bool)
    )
    return fill_reserve(affinity, chosen, count - covered)


def _check_request(count: int, instruction: InstructionEvidence | None, tokens: int) -> None:
    where = "initial_selection"
    require_count(where, count, tokens)
    if instruction is not None:
        require_shape(where, "instruction", instruction.distribution, (tokens,))
        require_evidence(where, "instruction", instruction.distribution)
