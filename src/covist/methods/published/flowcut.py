"""FlowCut: drops tokens inside the vision tower, layer by layer, by their part in the information flow."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covist.contract.encoder import EncoderRead, LayerRun, Tower
from covist.contract.views import DecoderView, ImageContext
from covist.errors import CovistError
from covist.formulas.ops import entropy, mass_norm, round_half_up, share_groups
from covist.methods.inside import ChooseInside, Stepped, published_schedule
from covist.methods.published import register_published
from covist.methods.shared import largest, received_attention, rewritten, tile_shares
from covist.reduction import Reduction
from covist.schedule import Schedule, fixed_schedule
from covist.state import VisualState

ENTRY, VALUES = EncoderRead("entry"), EncoderRead("values")
MEMORY = 0.5
Tiles = Literal["once", "twice", "nominal"]


@register_published
class FlowCut(Stepped, ChooseInside):
    name = "flowcut"
    default_positions = "reindex"
    encoder_requests = (ENTRY, VALUES)
    writes_content = True
    cuts = (0, 2)
    shape = (2.5, 1.0)  # five tiles with K / 2 each, then K
    reads_preceding_layer = True
    options: ClassVar = {
        "tiles": "once: tokens are dropped only in the vision tower; twice: as published for images of five tiles, "
        "where 2.5 times as many enter the decoder as remain after its layer 1; nominal: the same with the published "
        "counts, whose layer mean is above the budget"
    }

    def __init__(self, tiles: Tiles = "once", **options: Any):
        super().__init__(**options)
        if tiles not in ("once", "twice", "nominal"):
            raise CovistError(f"tiles={tiles!r}: choose once, twice or nominal")
        self.tiles = tiles
        self.counts = "nominal" if tiles == "nominal" else "average"

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        if self.tiles == "once":
            return fixed_schedule(layers, budget, tokens)
        if self.tiles == "twice" or budget >= tokens:
            return super().schedule(layers, budget, tokens)
        return published_schedule(layers, tokens, self.cuts, [round_half_up(part * budget) for part in self.shape])

    def enter(self, image: ImageContext, state: VisualState, count: int) -> Reduction:
        signals = image.signals
        if signals.tower is None:
            score = flow_without_class(received_attention(signals), signals.read(VALUES)[0])
            return Reduction(state.restrict(largest(score, count).sort().values))
        kept: list[Tensor] = []
        for number, (members, share) in enumerate(tile_shares(signals, count)):
            if share:
                patches = signals.pack[members] % (signals.tower.entry.shape[1] - 1)
                stay, outputs = walk(signals.tower, number, patches, share)
                kept.append(members[stay])
                state = rewritten(state, members[stay], signals.project(outputs))
        return Reduction(state.restrict(torch.cat(kept).sort().values))

    def choose(self, state: VisualState, view: DecoderView, count: int) -> Tensor:
        last = torch.tensor([view.last_instruction_row], device=view.visual.device)
        queries = view.queries(last).float()
        keys = share_groups(view.keys(view.visual).float(), len(queries))  # [heads, K, w]
        root = math.sqrt(keys.shape[-1])
        attention = (queries @ keys.transpose(1, 2) / root).softmax(-1).mean((0, 1))
        of_last, values = view.values(last).float()[:, 0], view.values(view.visual).float()  # [kv heads, (K,) w]
        return largest(_flow(attention, of_last / root, values, of_class=False), count)


def walk(tower: Tower, tile: int, patches: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` of a tile's `patches` [n] that stay, increasing, and their features [count, v] for the projector."""
    states = tower.entry[tile]
    token = torch.full((len(states) - 1,), -1, device=states.device)  # of each patch; -1 is not content
    token[patches] = torch.arange(len(patches), device=states.device)
    score, features, last = None, {}, max(tower.feature_layers)
    for layer in range(last + 1):
        ran = tower.run(layer, states)
        states = ran.states
        if layer in tower.feature_layers:
            features[layer] = states
        if len(token) == count:
            continue
        now = flow(ran)
        score = now if score is None else MEMORY * score + (1 - MEMORY) * now
        leaving = leaving_after(ran, count, last - layer - 1)
        stay = largest(score.masked_fill(token < 0, -torch.inf), len(token) - leaving).sort().values
        token, score = token[stay], score[stay]
        rows = torch.cat([stay.new_zeros(1), stay + 1])  # the class token stays
        states, features = states[rows], {number: outputs[rows] for number, outputs in features.items()}
    return token, torch.cat([features[number][1:] for number in tower.feature_layers], dim=-1)


def flow(ran: LayerRun) -> Tensor:
    """The score of each patch after a layer, [n]."""
    values = ran.values.float()
    return _flow(ran.attention.mean(0)[1:], values[:, 0], values, of_class=True)


def flow_without_class(attention: Tensor, values: Tensor) -> Tensor:
    """The same from received attention [N] and values [N, heads, w], whose weighted mean replaces the class token's."""
    values = values.float().transpose(0, 1)
    return _flow(attention, torch.einsum("n,hnw->hw", mass_norm(attention), values), values, of_class=False)


def _flow(attention: Tensor, class_value: Tensor, values: Tensor, of_class: bool) -> Tensor:
    """From attention [n], the class token's value [heads, w] and values [heads, n, w], its own first if `of_class`."""
    alike = (values @ class_value[..., None]).squeeze(-1).softmax(-1).mean(0)[of_class:]
    strength = values.mean(0)[of_class:].abs().sum(-1)
    return (mass_norm(attention) + mass_norm(alike)) * strength


def leaving_after(ran: LayerRun, count: int, remaining: int) -> int:
    """How many patches are dropped after a layer, if `count` must remain after `remaining` further layers."""
    attention = mass_norm(ran.attention.mean(0)[1:])
    surplus = len(attention) - count
    if remaining <= 0:
        return surplus
    if remaining % 2:
        return 0
    spread = float(entropy(attention)) / math.log(len(attention))
    return round(surplus / math.sqrt(remaining) * (1 - spread**2))
