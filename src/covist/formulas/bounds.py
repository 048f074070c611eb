"""Proposition 1: how far the output of an attention head can move when representatives replace groups of tokens."""

import torch
from torch import Tensor

from covist.checks import require_shape


def attention_bound(
    logits: Tensor,
    values: Tensor,
    kept_logits: Tensor,
    kept_values: Tensor,
    assignment: Tensor,
    text_values: Tensor,
) -> Tensor:
    """Eq. 11 for one query: `eta / V + 2 tanh(delta / 2)`, the bound divided by the largest norm V of a value, [heads].

    logits: of all N visual keys, [heads, N]; values: theirs, [heads, N, v]; kept_logits: of the K representatives,
    including the bias of Eq. 9, [heads, K]; kept_values: [heads, K, v]; assignment: the representative of each token,
    [N]; text_values: [heads, T, v], the same with and without compression.
    """
    heads, count = kept_logits.shape
    require_shape("attention_bound", "assignment", assignment, (logits.shape[1],))
    largest = torch.full((heads, count), -torch.inf).to(logits)
    peak = largest.scatter_reduce(1, assignment.expand(heads, -1), logits, "amax")  # [heads, K]
    shares = (logits - peak[:, assignment]).exp()  # relative to the largest of the group
    sums = torch.zeros_like(peak).index_add_(1, assignment, shares)
    means = torch.zeros_like(kept_values).index_add_(1, assignment, shares[..., None] * values) / sums[..., None]
    delta = (kept_logits - peak - sums.log()).abs().amax(1)  # [heads]
    eta = torch.linalg.vector_norm(means - kept_values, dim=-1).amax(1)
    norms = torch.linalg.vector_norm(torch.cat([kept_values, text_values], dim=1), dim=-1).amax(1)
    return eta / norms + 2 * torch.tanh(delta / 2)
