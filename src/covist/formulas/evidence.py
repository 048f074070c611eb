"""Visual and instruction evidence: Eqs. 3 and 16."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from covist.checks import require, require_finite, require_shape, require_sound
from covist.config import CovistConfig
from covist.formulas.attention import mean_attention
from covist.formulas.ops import departure_from_uniform, entropy, gram, mass_norm, min_max, unit_rows
from covist.grid import Grid

ATTENTION_PERCENTILE = 0.995
DIFFUSION_NEIGHBOURS = 8
DIFFUSION_STEPS = 2
DIFFUSION_RATE = 0.35
DIFFUSION_TEMPERATURE = 0.1
GLOBAL_DISTINCTIVENESS, LOCAL_DISTINCTIVENESS = 0.45, 0.55
TEXT_TEMPERATURE = 0.01


@dataclass(frozen=True)
class Neighbours:
    """The nearest other tokens in key space: indices and cosines, both [N, k] with k = min(8, N - 1)."""

    indices: Tensor
    similarities: Tensor


@dataclass(frozen=True)
class VisualEvidence:
    """Evidence from the image: smoothed attention (sum 1), distinctiveness, base evidence b, all [N]; and c, []."""

    attention: Tensor
    distinctiveness: Tensor
    base: Tensor
    departure: Tensor

    @property
    def concentration(self) -> float:
        """c as a number; this reads from the device."""
        return float(self.departure)


def mix_heads(attention: Tensor) -> Tensor:
    """Aggregate heads [..., heads, n] -> [..., n], each weighted by its departure from uniform attention."""
    heads = mass_norm(attention.float())
    weights = mass_norm(departure_from_uniform(heads))  # [..., heads]
    return (weights[..., None] * heads).sum(-2)


def nearest_neighbours(similarity: Tensor) -> Neighbours:
    """The diffusion graph from key cosines [N, N]. The diagonal is overwritten and then restored."""
    own = similarity.diagonal().clone()
    similarity.fill_diagonal_(-torch.inf)
    values, indices = similarity.topk(min(DIFFUSION_NEIGHBOURS, similarity.shape[0] - 1))
    similarity.diagonal().copy_(own)
    return Neighbours(indices, values)


def smooth_attention(attention: Tensor, neighbours: Neighbours, grid: Grid) -> Tensor:
    """Truncate the peaks, diffuse over the key graph, then smooth inside each view: [N] -> [N] with sum 1."""
    smoothed = mass_norm(attention.float())
    smoothed = smoothed.clamp(max=percentile(smoothed, ATTENTION_PERCENTILE))
    if neighbours.indices.shape[1]:
        transition = torch.softmax(neighbours.similarities / DIFFUSION_TEMPERATURE, dim=-1)  # [N, k]
        for _ in range(DIFFUSION_STEPS):
            arriving = (transition * smoothed[neighbours.indices]).sum(-1)
            smoothed = torch.lerp(smoothed, arriving, DIFFUSION_RATE)
    return mass_norm(grid.smooth(smoothed))


def percentile(values: Tensor, fraction: float) -> Tensor:
    """The value [] below which `fraction` of `values` [N] lie, linear between the two nearest."""
    place = fraction * (values.shape[0] - 1)
    below = math.floor(place)
    top = values.topk(values.shape[0] - below).values  # largest first; the last is the one below the place
    return torch.lerp(top[-1], top[-2:][0], place - below)


def feature_distinctiveness(unit_embeddings: Tensor, cosines: Tensor, grid: Grid, epsilon: float) -> Tensor:
    """How much each token stands out, globally and from its spatial neighbours -> [N].

    unit_embeddings: unit rows [N, d]; cosines: between all pairs of them [N, N].
    """
    mean_direction = unit_rows(unit_embeddings.sum(0), epsilon)
    similarities = torch.stack([unit_embeddings @ mean_direction, grid.neighbour_similarity(cosines)])
    # MinMax(1 - v) is MinMax(-v), which keeps the scale by which rounding is recognised
    apart, contrast = min_max(-similarities, epsilon)
    return GLOBAL_DISTINCTIVENESS * apart + LOCAL_DISTINCTIVENESS * contrast


def visual_evidence(
    attention: Tensor, keys: Tensor, embeddings: Tensor, grid: Grid, config: CovistConfig
) -> VisualEvidence:
    """Evidence from attention [N], keys [N, k] and projected embeddings [N, d], up to b of Eq. 16."""
    check_signals("visual_evidence", attention, keys, embeddings, grid)
    unit_keys, unit_embeddings = unit_rows(keys, config.epsilon), unit_rows(embeddings, config.epsilon)
    return weigh_image(attention, gram(unit_keys), unit_embeddings, gram(unit_embeddings), grid, config)


def check_signals(where: str, attention: Tensor, keys: Tensor, embeddings: Tensor, grid: Grid, **more: Tensor) -> None:
    """Require encoder signals that are finite, with one row per token of the grid and no negative attention.

    more: further evidence [N], by name.
    """
    evidence = {"attention": attention, **more}
    for name, values in evidence.items():
        require_shape(where, name, values, (grid.size,))
    require_shape(where, "keys", keys, (grid.size, None))
    require_shape(where, "embeddings", embeddings, (grid.size, None))
    require_sound(where, evidence, keys=keys, embeddings=embeddings)


def weigh_image(
    attention: Tensor,
    key_cosines: Tensor,
    unit_embeddings: Tensor,
    embedding_cosines: Tensor,
    grid: Grid,
    config: CovistConfig,
) -> VisualEvidence:
    """`visual_evidence` for a caller that already has the cosines [N, N] and the normalised embeddings."""
    smoothed = smooth_attention(attention, nearest_neighbours(key_cosines), grid)
    distinctiveness = feature_distinctiveness(unit_embeddings, embedding_cosines, grid, config.epsilon)
    return VisualEvidence(
        attention=smoothed,
        distinctiveness=distinctiveness,
        base=base_evidence(smoothed, distinctiveness, config.epsilon),
        departure=departure_from_uniform(smoothed),
    )


def base_evidence(attention: Tensor, distinctiveness: Tensor, epsilon: float) -> Tensor:
    """Eq. 16: the two min-max-normalised maps mixed by their variances."""
    maps = min_max(torch.stack([attention, distinctiveness]), epsilon)
    (a, s), (a_variance, s_variance) = maps, maps.var(-1, correction=0)
    rho = a_variance / (a_variance + s_variance + epsilon)
    return mass_norm(torch.lerp(s, a, rho))  # rho a + (1 - rho) s


def instruction_distribution(text: Tensor, patches: Tensor, config: CovistConfig) -> Tensor:
    """pi [N] from projected text tokens [T, p] (BOS dropped, EOS last) and patches [N, p] in the same space."""
    require_shape("instruction_distribution", "text", text, (None, patches.shape[-1]))
    require(text.shape[0] > 0, "instruction_distribution", "text needs at least the end-of-sequence token")
    require_finite("instruction_distribution", text=text, patches=patches)
    cosine = unit_rows(text, config.epsilon) @ unit_rows(patches, config.epsilon).T  # u, [T, N]
    entropies, order = entropy(torch.softmax(cosine / TEXT_TEMPERATURE, dim=-1)).sort(stable=True)
    half = math.ceil(text.shape[0] / 2)
    weights = torch.softmax(entropies[:half] / -TEXT_TEMPERATURE, dim=0)
    dense, end = weights @ cosine[order[:half]], cosine[-1]
    return mass_norm(min_max(config.instruction_sign * torch.stack([dense, end]), config.epsilon).mean(0))


def first_layer_distribution(queries: Tensor, keys: Tensor, scale: float | None = None) -> Tensor:
    """pi [N] from first-block queries [heads, T, dh] of the instruction and visual keys [kv heads, N, dh], no RoPE.

    scale: the factor of the model's logits, if not dh^-1/2.
    """
    heads, tokens, width = queries.shape
    require(tokens > 0, "first_layer_distribution", "queries need at least one instruction token")
    require(keys.shape[-1] == width, "first_layer_distribution", "queries and keys must have the same head width")
    require(heads % keys.shape[0] == 0, "first_layer_distribution", "query heads must be a multiple of key heads")
    require_finite("first_layer_distribution", queries=queries, keys=keys)
    return mass_norm(mean_attention(queries, keys, scale))


def selectivity(distribution: Tensor) -> Tensor:
    """sigma: half the L1 distance of pi from uniform, in [0, 1)."""
    return 0.5 * torch.linalg.vector_norm(distribution - 1 / distribution.shape[-1], 1, dim=-1)


def mix_evidence(
    base: Tensor, distribution: Tensor, max_weight: float, config: CovistConfig, selective: Tensor | None = None
) -> Tensor:
    """Eq. 3: add what the instruction asks for beyond the base evidence -> e [N].

    selective: sigma of the distribution, if the caller already has it.
    """
    require_shape("mix_evidence", "distribution", distribution, tuple(base.shape))
    residual = (distribution - base).clamp(min=0)
    sigma = selectivity(distribution) if selective is None else selective
    weight = (sigma * (max_weight / config.selectivity_scale)).clamp(max=max_weight)
    weight = weight * residual.any()
    return mass_norm(torch.lerp(base, mass_norm(residual), weight))
