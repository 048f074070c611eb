"""How a decoder layer turns hidden states into queries and keys: norms, head split, rotary pairing and width, scale.

Models differ here in ways that their configuration does not reveal. So a reader runs the layer on a few tokens, records
what its attention function receives, and keeps the recipe that reproduces it. If none does, the layer is not read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from covist.contract.decoder import Rotary
from covist.engine.capture import Received, execution_device
from covist.engine.projections import PROJECTIONS, norms_of, row_norms
from covist.errors import CovistError
from covist.formulas.attention import projection_energy
from covist.formulas.rotary import Pairing, in_halves, interleaved, rotate

NormPlace = Literal["none", "per head", "full width", "after rotation"]
Rotation = Literal["halves", "neighbours", "neighbours of halves", "none"]
"""How a layer rotates; "neighbours of halves" receives angles laid out for halves and rotates neighbours."""

NORM_PLACES: tuple[NormPlace, ...] = ("none", "per head", "full width", "after rotation")
ROTATIONS: tuple[Rotation, ...] = ("halves", "neighbours", "neighbours of halves", "none")
FURTHER_OPTIONS = {"softcap": "caps its attention logits", "s_aux": "has attention sinks"}
"""Options of an attention function that change the attention beyond q, k and scale, and what they mean."""


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
    input_norm: str | None = None  # the layer's norm before the projections
    value_norm: bool = False  # whether values have a norm too
    further: str | None = None  # what else the attention does to its logits

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

    def form_values(self, projected: Tensor, attention: Any) -> Tensor:
        """Values [kv heads, tokens, value width] in float32, from a projection's output [tokens, out]."""
        states = projected.unflatten(-1, (self.kv_heads, -1))
        if self.value_norm:
            states = attention.v_norm(states)
        return states.transpose(0, 1).float()

    def normalise(self, states: Tensor, norm: Any) -> Tensor:
        """Apply the layer's own norm to queries or keys [tokens, heads, head width]."""
        if self.norm == "none":
            return states
        return norm(states.flatten(1)).view_as(states) if self.norm == "full width" else norm(states)


class AttentionReader:
    """Queries, keys, values and projection energies of one decoder layer, which computes in `dtype`."""

    def __init__(self, layer: Any, attention: str, recipe: Recipe, dtype: torch.dtype):
        self._layer, self.name, self.recipe, self._dtype = layer, attention, recipe, dtype

    @property
    def _attention(self) -> Any:
        return getattr(self._layer, self.name)

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
        return self.recipe.form_values(self._project(2, hidden), self._attention).to(hidden.device)

    def energy(self, width: int) -> Tensor | None:
        """E of Eq. 10 [heads, head width / 2] for hidden states of `width`; None in a layer without rotary."""
        if not self.rotates:
            return None
        recipe, attention, device = self.recipe, self._attention, execution_device(self._layer)
        norms = []
        for name, heads, norm in zip(PROJECTIONS, (recipe.heads, recipe.kv_heads), norms_of(attention), strict=False):
            rows = row_norms(getattr(attention, name), width, device, self._dtype)
            rows = rows.view(heads, -1)[:, : recipe.head_width]
            norms.append(in_halves(rows * _gains(recipe, heads, norm), recipe.rotated, recipe.pairing))
        return projection_energy(*norms)

    def _project(self, number: int, hidden: Tensor) -> Tensor:
        norm = self.recipe.input_norm
        normed = hidden if norm is None else getattr(self._layer, norm)(hidden)
        return getattr(self._attention, PROJECTIONS[number])(normed)

    def _states(self, number: int, heads: int, hidden: Tensor, rotary: Rotary | None) -> Tensor:
        projected = self._project(number, hidden)
        # A layer may compute on another device; the method's arithmetic stays on the device of `hidden`.
        here = None if rotary is None else (rotary[0].to(projected.device), rotary[1].to(projected.device))
        return self.recipe.form(projected, heads, norms_of(self._attention)[number], here).to(hidden.device)


def learn_recipe(layer: Any, attention: Any, hidden: Tensor, rotary: Rotary | None, received: Received) -> Recipe:
    """The recipe by which a layer turned hidden states [tokens, d] into what its attention `received`."""
    name = type(attention).__name__
    tolerance = max(1e-4, 8 * torch.finfo(received.queries.dtype).eps)
    norm, error = _input_norm(layer, hidden.to(received.queries.device), received)
    if not error <= tolerance:
        raise CovistError(f"{name} does not read the layer's input after a norm")
    norms = norms_of(attention)
    candidates = ((recipe, _error(recipe, norms, rotary, received)) for recipe in _candidates(norms, rotary, received))
    recipe, error = min(candidates, key=lambda found: found[1])
    recipe = replace(recipe, value_norm=getattr(attention, "v_norm", None) is not None)
    error = max(error, _apart(recipe.form_values(received.projected[2], attention), received.values))
    if not error <= tolerance:
        raise CovistError(
            f"{name} computes its queries, keys or values in a way that covist does not know (a trial run differs by "
            f"{error:.0%})"
        )
    further = [meaning for option, meaning in FURTHER_OPTIONS.items() if received.options.get(option) is not None]
    return replace(recipe, input_norm=norm, further=f"{name} {' and '.join(further)}" if further else None)


def _input_norm(layer: Any, hidden: Tensor, received: Received) -> tuple[str | None, float]:
    """The name of the layer's norm before its projections (None if there is none), and how far it is off."""
    norms = [name for name, child in layer.named_children() if "norm" in name.lower() and child is not None]
    found: list[tuple[str | None, float]] = []
    for name in (*(norm for norm in norms if norm == "input_layernorm"), None, *norms):
        try:
            normed = hidden if name is None else getattr(layer, name)(hidden)
        except RuntimeError:  # a norm of another width
            continue
        found.append((name, max(_apart(seen, normed) for seen in received.normed)))
    return min(found, key=lambda one: one[1])


def _candidates(norms: tuple[Any, Any], rotary: Rotary | None, received: Received) -> list[Recipe]:
    heads, _, width = received.queries.shape
    places = NORM_PLACES if norms[0] is not None else NORM_PLACES[:1]
    rotations, rotated = (ROTATIONS[-1:], 0) if rotary is None else (ROTATIONS, rotary[0].shape[-1])
    return [
        Recipe(heads, received.keys.shape[0], width, rotated, received.scale, norm, rotation)
        for norm, rotation in product(places, rotations)
    ]


def _error(recipe: Recipe, norms: tuple[Any, Any], rotary: Rotary | None, received: Received) -> float:
    """Relative error of a recipe against what the attention received; infinite if it does not fit."""
    try:
        queries = recipe.form(received.projected[0], recipe.heads, norms[0], rotary)
        keys = recipe.form(received.projected[1], recipe.kv_heads, norms[1], rotary)
    except (RuntimeError, ValueError):  # a norm for another layout, angles for another width
        return float("inf")
    return max(_apart(queries, received.queries), _apart(keys, received.keys))


def _apart(ours: Tensor, theirs: Tensor) -> float:
    """Distance between two tensors relative to the second; infinite if shapes differ or values are not finite."""
    if ours.shape != theirs.shape:
        return float("inf")
    theirs = theirs.float()
    distance = float((ours.to(theirs.device).float() - theirs).norm() / theirs.norm().clamp(min=1e-12))
    return distance if distance == distance else float("inf")


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
