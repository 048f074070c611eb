"""How a decoder layer turns hidden states into queries and keys: norms, head split, rotary pairing and width, scale.

Models differ here in ways that their configuration does not reveal. So a reader runs the layer on a few tokens, records
what its attention function receives, and keeps the recipe that reproduces it. If none does, the model is refused.
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
"""How a layer rotates; "neighbours of halves" receives angles laid out for halves and rotates neighbours."""

NORM_NAMES = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))
NORM_PLACES: tuple[NormPlace, ...] = ("none", "per head", "full width", "after rotation")
ROTATIONS: tuple[Rotation, ...] = ("halves", "neighbours", "neighbours of halves", "none")
REFUSED_OPTIONS = {"softcap": "caps its attention logits", "s_aux": "has attention sinks"}
"""Options of an attention function that change the logits beyond q, k and scale, and what they mean."""


@dataclass(frozen=True)
class Recipe:
    """How the layers of one kind turn their projections into queries and keys."""

    heads: int
    kv_heads: int
    head_width: int
    rotated: int  # dimensions of a head that are rotated
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
        """Queries or keys [heads, tokens, head width] in float32, from a projection's output [tokens, out]."""
        # A gated projection has its gate after the query of each head.
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
        """Apply the layer's own norm to queries or keys [tokens, heads, head width]."""
        if self.norm == "none":
            return states
        return norm(states.flatten(1)).view_as(states) if self.norm == "full width" else norm(states)


class AttentionReader:
    """Queries, keys, values and projection energies of one decoder layer."""

    def __init__(self, layer: Any, recipe: Recipe):
        self._layer, self.recipe = layer, recipe

    @property
    def rotates(self) -> bool:
        """Whether this layer's attention depends on positions."""
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
        # A layer may compute on another device; the method's arithmetic stays on the device of `hidden`.
        here = None if rotary is None else (rotary[0].to(projected.device), rotary[1].to(projected.device))
        return self.recipe.form(projected, heads, _norms(self._layer.self_attn)[number], here).to(hidden.device)


def input_norm(layer: Any) -> Callable[[Tensor], Tensor]:
    """The norm before a layer's attention; some layers have none."""
    return getattr(layer, "input_layernorm", None) or nn.Identity()


def split_heads(projected: Tensor, heads: int) -> Tensor:
    """[tokens, heads x width] -> [heads, tokens, width] in float32."""
    return projected.unflatten(-1, (heads, -1)).transpose(0, 1).float()


def learn_recipe(layer: Any, hidden: Tensor, rotary: Rotary, received: Received) -> Recipe:
    """The recipe by which a layer turned hidden states [tokens, d] into what its attention `received`."""
    name = type(layer.self_attn).__name__
    for option, meaning in REFUSED_OPTIONS.items():
        if received.options.get(option) is not None:
            raise CovistError(f"{name} {meaning}, which compression does not support; use another text model")
    tolerance = max(1e-4, 8 * torch.finfo(received.queries.dtype).eps)
    normed = input_norm(layer)(hidden.to(received.queries.device))
    values = split_heads(received.projected[2], received.keys.shape[0])
    if not max(_apart(seen, normed) for seen in received.normed) <= tolerance:
        raise CovistError(f"{name} does not read the layer's input after its norm; use another text model")
    recipe, error = min(
        ((recipe, _error(recipe, layer, rotary, received)) for recipe in _candidates(layer, rotary, received)),
        key=lambda found: found[1],
    )
    error = max(error, _apart(values, received.values))
    if not error <= tolerance:
        raise CovistError(
            f"{name} computes its queries, keys or values in a way that covist does not know (a trial run differs by "
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
    """Relative error of a recipe against what the attention received; infinite if it does not fit."""
    norms = _norms(layer.self_attn)
    try:
        queries = recipe.form(received.projected[0], recipe.heads, norms[0], rotary)
        keys = recipe.form(received.projected[1], recipe.kv_heads, norms[1], rotary)
    except RuntimeError:  # a norm for another layout, angles for another width
        return float("inf")
    return max(_apart(queries, received.queries), _apart(keys, received.keys))


def _apart(ours: Tensor, theirs: Tensor) -> float:
    """Distance between two tensors relative to the second; infinite if shapes differ or values are not finite."""
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

    The norm is applied to a vector of alternating signs, whose mean is 0 and whose rms is 1; subtracting its response
    to the opposite vector removes a bias. The rms of real states is one number per head and cancels in Eq. 10's mass.
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
