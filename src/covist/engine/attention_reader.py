"""How a decoder layer makes queries and keys of hidden states: norms, head split, rotary pairing and width, scale.

Models differ here without saying so, so nothing is taken from their names: a reader runs the layer on a few tokens,
looks at what its attention function receives, and keeps the one recipe that gives the same. If none does, the model is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn

from covist.contract.decoder import Rotary
from covist.engine.capture import PROJECTIONS, Received
from covist.engine.projections import row_norms
from covist.errors import CovistError
from covist.formulas.attention import projection_energy
from covist.formulas.rotary import Pairing, in_halves, interleaved, rotate

NormPlace = Literal["none", "per head", "full width", "after rotation"]
Rotation = Literal["halves", "neighbours", "neighbours of halves", "none"]
"""How a layer rotates; "neighbours of halves" is given angles laid out for halves and turns neighbours."""

NORM_NAMES = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))
NORM_PLACES: tuple[NormPlace, ...] = ("none", "per head", "full width", "after rotation")
ROTATIONS: tuple[Rotation, ...] = ("halves", "neighbours", "neighbours of halves", "none")
REFUSED_OPTIONS = {"softcap": "caps its attention logits", "s_aux": "has attention sinks"}
"""What an attention function may be asked for that changes the logits beyond q, k and scale."""


@dataclass(frozen=True)
class Recipe:
    """How the layers of one kind make queries and keys of their projections."""

    heads: int
    kv_heads: int
    head_width: int
    rotated: int  # dimensions of a head that turn
    scale: float
    norm: NormPlace
    rotation: Rotation

    def rotate(self, states: Tensor, rotary: Rotary) -> Tensor:
        """States [..., tokens, head width] in float32, as the layer rotates them."""
        if self.rotation == "none":
            return states.float()
        cos, sin = (interleaved(part) if self.rotation == "neighbours of halves" else part for part in rotary)
        return rotate(states, cos, sin, self.pairing)

    @property
    def pairing(self) -> Pairing:
        return "halves" if self.rotation == "halves" else "neighbours"

    def form(self, projected: Tensor, heads: int, norm: Any, rotary: Rotary | None) -> Tensor:
        """Queries or keys [heads, tokens, head width] in float32 of a projection's output [tokens, out]."""
        # A gated projection has something else after the query of each head.
        states = projected.unflatten(-1, (heads, -1))[..., : self.head_width]  # [tokens, heads, head width]
        if self.norm != "after rotation":
            states = self.normalise(states, norm)
        states = states.transpose(0, 1)
        if rotary is not None:
            states = self.rotate(states, rotary)
        if self.norm == "after rotation":
            states = self.normalise(states.transpose(0, 1).to(projected.dtype), norm).transpose(0, 1)
        return states.float()

    def normalise(self, states: Tensor, norm: Any) -> Tensor:
        """The layer's own norm of queries or keys [tokens, heads, head width]."""
        if self.norm == "none":
            return states
        return norm(states.flatten(1)).view_as(states) if self.norm == "full width" else norm(states)


class AttentionReader:
    """Queries, keys, values and projection energies of one decoder layer."""

    def __init__(self, layer: Any, recipe: Recipe):
        self._layer, self.recipe = layer, recipe

    @property
    def rotates(self) -> bool:
        """Whether positions enter this layer's attention."""
        return self.recipe.rotation != "none"

    def queries(self, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[heads, tokens, head width] in float32 of hidden states [tokens, d], rotated if `rotary` is given."""
        return self._states(0, self.recipe.heads, hidden, rotary)

    def keys(self, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[kv heads, tokens, head width] in float32, rotated if `rotary` is given."""
        return self._states(1, self.recipe.kv_heads, hidden, rotary)

    def values(self, hidden: Tensor) -> Tensor:
        """[kv heads, tokens, value width] in float32."""
        return split_heads(self._project(2, hidden), self.recipe.kv_heads).to(hidden.device)

    def energy(self, width: int) -> Tensor | None:
        """E of Eq. 10 [heads, head width / 2] for hidden states of `width`; None in a layer without rotary."""
        if not self.rotates:
            return None
        recipe, attention = self.recipe, self._layer.self_attn
        norms = []
        for name, heads, norm in zip(PROJECTIONS, (recipe.heads, recipe.kv_heads), _norms(attention), strict=False):
            rows = row_norms(getattr(attention, name), width).view(heads, -1)[:, : recipe.head_width]
            norms.append(in_halves(rows * _gains(recipe, heads, norm), recipe.rotated, recipe.pairing))
        return projection_energy(*norms)

    def _project(self, number: int, hidden: Tensor) -> Tensor:
        projection = getattr(self._layer.self_attn, PROJECTIONS[number])
        return projection(input_norm(self._layer)(hidden))

    def _states(self, number: int, heads: int, hidden: Tensor, rotary: Rotary | None) -> Tensor:
        projected = self._project(number, hidden)
        # A layer on another device answers there; the method's arithmetic stays where it is.
        here = None if rotary is None else (rotary[0].to(projected.device), rotary[1].to(projected.device))
        return self.recipe.form(projected, heads, _norms(self._layer.self_attn)[number], here).to(hidden.device)


def input_norm(layer: Any) -> Callable[[Tensor], Tensor]:
    """The norm that a layer applies to what its attention reads; some layers have none."""
    return getattr(layer, "input_layernorm", None) or nn.Identity()


def split_heads(projected: Tensor, heads: int) -> Tensor:
    """[tokens, heads x width] -> [heads, tokens, width] in float32."""
    return projected.unflatten(-1, (heads, -1)).transpose(0, 1).float()


def learn_recipe(layer: Any, hidden: Tensor, rotary: Rotary, received: Received) -> Recipe:
    """The recipe by which a layer made what its attention `received` of hidden states [tokens, d]."""
    name = type(layer.self_attn).__name__
    for option, meaning in REFUSED_OPTIONS.items():
        if received.options.get(option) is not None:
            raise CovistError(f"{name} {meaning}, which compression does not follow yet; use another text model")
    tolerance = max(1e-4, 8 * torch.finfo(received.queries.dtype).eps)
    normed = input_norm(layer)(hidden.to(received.queries.device))
    values = split_heads(received.projected[2], received.keys.shape[0])
    if not max(_apart(seen, normed) for seen in received.normed) <= tolerance:
        raise CovistError(f"{name} reads something else than the layer's input after its norm; use another text model")
    recipe, error = min(
        ((recipe, _error(recipe, layer, rotary, received)) for recipe in _candidates(layer, rotary, received)),
        key=lambda found: found[1],
    )
    error = max(error, _apart(values, received.values))
    if not error <= tolerance:
        raise CovistError(
            f"{name} makes its queries, keys or values in a way that covist does not know (a trial differs by "
            f"{error:.0%}), so its attention cannot be read; use another text model"
        )
    return recipe


def _candidates(layer: Any, rotary: Rotary, received: Received) -> list[Recipe]:
    heads, _, width = received.queries.shape
    norms = NORM_PLACES if _norms(layer.self_attn)[0] is not None else NORM_PLACES[:1]
    return [
        Recipe(heads, received.keys.shape[0], width, rotary[0].shape[-1], received.scale, norm, rotation)
        for norm, rotation in product(norms, ROTATIONS)
    ]


def _error(recipe: Recipe, layer: Any, rotary: Rotary, received: Received) -> float:
    """How far a recipe is from what the attention received, relative to it; infinite if it does not fit."""
    norms = _norms(layer.self_attn)
    try:
        queries = recipe.form(received.projected[0], recipe.heads, norms[0], rotary)
        keys = recipe.form(received.projected[1], recipe.kv_heads, norms[1], rotary)
    except RuntimeError:  # a norm for another layout, angles for another width
        return float("inf")
    return max(_apart(queries, received.queries), _apart(keys, received.keys))


def _apart(ours: Tensor, theirs: Tensor) -> float:
    """Distance of two tensors relative to the second; infinite if they differ in shape or are not finite."""
    if ours.shape != theirs.shape:
        return float("inf")
    theirs = theirs.float()
    distance = float((ours.to(theirs.device).float() - theirs).norm() / theirs.norm().clamp(min=1e-12))
    return distance if distance == distance else float("inf")


def _norms(attention: Any) -> tuple[Any, Any]:
    """The norms of queries and keys, if the attention module has them."""
    for query, key in NORM_NAMES:
        if getattr(attention, query, None) is not None and getattr(attention, key, None) is not None:
            return getattr(attention, query), getattr(attention, key)
    return None, None


@torch.no_grad()
def _gains(recipe: Recipe, heads: int, norm: Any) -> Tensor:
    """|gamma| [heads, head width] of a norm of queries or keys, on the CPU; ones without a norm.

    The norm answers a vector of alternating signs, whose mean is 0 and whose rms is 1; the answer to the opposite
    vector takes a bias off. The rms of real states is one number per head, which cancels in the mass of Eq. 10.
    """
    signs = torch.ones(1, heads, recipe.head_width)
    signs[..., 1::2] = -1
    if recipe.norm == "none":
        return signs[0].abs()
    parameter = next(iter(norm.parameters()), signs)
    if not parameter.is_meta:
        signs = signs.to(parameter.device, parameter.dtype)
    answer = recipe.normalise(signs, norm).float() - recipe.normalise(-signs, norm).float()
    return (answer / 2).abs()[0].cpu()
