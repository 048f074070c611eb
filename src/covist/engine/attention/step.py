"""Attention of a decoding step: one query per sample, which is the last key of every stage.

What does not change between steps is prepared once and kept with the cache. A step then costs a few operations for all
layers together and no read from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from covist.backends import Attended
from covist.contract.method import AttentionRule
from covist.engine.attention.interface import AttentionCall, MaskRule
from covist.engine.attention.mask import ELEMENTS_AT_ONCE, Terms, as_additive, visible
from covist.engine.sequence.ledger import Keys, Ledger
from covist.errors import CovistError

Stages = Sequence[tuple[range, Ledger]]
"""The layers of every stage, with their ledger."""


@dataclass
class Group:
    """Layers that see all keys of their stage and differ only in their gains; their masks are made together."""

    layers: list[int] = field(default_factory=list)
    scale: Tensor | None = None  # [layers, 1, heads, 1, 1], once a whole step has met them


@dataclass
class StepKeys:
    """The joined keys of all stages side by side, as steps read them."""

    joined: tuple[Keys, ...]  # from which it was made
    dtype: torch.dtype
    rule: AttentionRule | None
    keys: Keys  # of all stages, at the positions that they would have without a shift
    blocked: Tensor  # [batch, 1, 1, keys] 0 where a query may attend, the lowest number elsewhere
    weights: dict[Terms, tuple[Tensor, Tensor]] = field(default_factory=dict)  # [batch, 1, 1, keys] each
    groups: dict[tuple[int, Terms], Group] = field(default_factory=dict)  # layers of a stage with equal terms

    @classmethod
    def of(cls, stages: Stages, rule: AttentionRule | None, dtype: torch.dtype) -> StepKeys:
        joined = tuple(ledger.joined for _, ledger in stages)
        unshifted = [
            Keys(keys.rows, _moved(keys.positions, ledger.shift), keys.valid, keys.image, keys.log_weight)
            for keys, (_, ledger) in zip(joined, stages, strict=True)
        ]
        keys = unshifted[0]
        for later in unshifted[1:]:
            keys = keys.concat(later)
        blocked = torch.zeros(keys.valid.shape, dtype=torch.float32, device=keys.valid.device)
        blocked.masked_fill_(~keys.valid, torch.finfo(dtype).min)  # survives the conversion that follows
        return cls(joined, dtype, rule, keys, blocked[:, None, None])

    def fits(self, stages: Stages, rule: AttentionRule | None, dtype: torch.dtype) -> bool:
        same = len(self.joined) == len(stages) and self.rule is rule and self.dtype == dtype
        return same and all(keys is ledger.joined for keys, (_, ledger) in zip(self.joined, stages, strict=True))

    def close_groups(self) -> None:
        """Make the masks of the layers that a step has met together from now on."""
        for group in self.groups.values():
            if self.rule is not None and (group.scale is None or len(group.scale) < len(group.layers)):
                group.scale = self.rule.scale[group.layers].to(self.blocked.device)[:, None, :, None, None]

    def weights_of(self, terms: Terms) -> tuple[Tensor, Tensor]:
        """log m, and 1 for keys that take the distance factor."""
        if terms not in self.weights:
            takes = terms.takes_distance(self.keys).float()
            self.weights[terms] = terms.log_weights(self.keys)[:, None, None], takes[:, None, None]
        return self.weights[terms]


class StepAttention:
    """How all layers attend in one step, whose ledgers already hold the new tokens."""

    def __init__(self, stages: Stages, query: Tensor, rule: AttentionRule | None, prepared: object):
        """`query` [batch, 1(, axes)]: uncompressed positions; `prepared`: what an earlier step has left."""
        self._stages, self._query = stages, query
        self._rule = rule if any(ledger.reduced for _, ledger in stages) else None
        self.prepared = prepared
        if isinstance(prepared, StepKeys):
            prepared.close_groups()
        self._biases: dict[Terms, Tensor] = {}
        self._masks: dict[object, Tensor] = {}
        self._grouped: dict[int, Tensor] = {}

    def attend(self, call: AttentionCall) -> Attended:
        """The attention of a layer."""
        mask = self._grouped.get(call.layer)
        if mask is not None and call.rule.is_causal and mask.shape[-1] == call.key.shape[2]:
            return call.under(mask.to(call.query.device))
        return self._attend_alone(call)

    def _attend_alone(self, call: AttentionCall) -> Attended:
        """The attention of a layer whose mask is not there yet, or is like no other's."""
        number = max(place for place, (layers, _) in enumerate(self._stages) if layers.start <= call.layer)
        ledger, keys = self._stages[number][1], call.key.shape[2]
        if keys > ledger.length:
            raise CovistError(f"layer {call.layer} attends to keys of another layer, which saw other tokens")
        sees_all = call.rule.is_causal and keys == ledger.length
        if self._rule is None and sees_all and call.backend == "sdpa" and not ledger.padded:
            return call.under(None)  # without a mask, sdpa attends to everything
        self._prepare(call.query.dtype)
        if self._rule is None or not ledger.reduced:
            return call.under(as_additive(self._blocked(number, call.rule, keys), call.query))
        terms = Terms.of(self._rule, call.layer)
        group = self._known.groups.setdefault((number, terms), Group())
        if sees_all and call.layer in group.layers and group.scale is not None:
            return call.under(self._of_group(number, terms, group, call.layer).to(call.query.device))
        if sees_all:
            group.layers.append(call.layer)
        bias = self._whole_bias(number, terms)[..., -keys:]
        scale = self._rule.scale[call.layer].to(bias.device)[None, :, None, None]
        return call.under(as_additive(torch.addcmul(self._blocked(number, call.rule, keys), bias, scale), call.query))

    # -- what steps share ----------------------------------------------------------------------------------------------

    @property
    def _known(self) -> StepKeys:
        assert isinstance(self.prepared, StepKeys), "made by the first layer that needs it"
        return self.prepared

    def _prepare(self, dtype: torch.dtype) -> None:
        known = self.prepared
        if not isinstance(known, StepKeys) or not known.fits(self._stages, self._rule, dtype):
            self.prepared = StepKeys.of(self._stages, self._rule, dtype)
            self._grouped = {}

    def _columns(self, number: int) -> slice:
        """The joined keys of a stage among those of all stages."""
        sizes = [ledger.joined.count for _, ledger in self._stages]
        return slice(sum(sizes[:number]), sum(sizes[: number + 1]))

    # -- the bias ------------------------------------------------------------------------------------------------------

    def _bias(self, terms: Terms) -> Tensor:
        """[batch, 1, 1, joined keys of all stages]: Eq. 9 before the gains."""
        if terms not in self._biases:
            weights, takes = self._known.weights_of(terms)
            if terms.distance is not None:
                reach = max(ledger.reach for _, ledger in self._stages)
                factor = terms.distance.log_factor(self._query, self._known.keys.positions, reach)
                weights = torch.addcmul(weights, factor[:, None], takes)
            self._biases[terms] = weights
        return self._biases[terms]

    def _whole_bias(self, number: int, terms: Terms) -> Tensor:
        """[batch, 1, 1, keys] of a stage; text keys, and so all keys fed since, have no bias."""
        where = number, terms
        if where not in self._masks:
            waiting = self._stages[number][1].waiting
            self._masks[where] = pad(self._bias(terms)[..., self._columns(number)], (0, waiting))
        return self._masks[where]

    # -- masks of layers that see all keys -----------------------------------------------------------------------------

    def _of_group(self, number: int, terms: Terms, group: Group, layer: int) -> Tensor:
        """[batch, heads, 1, keys]: the mask of a layer, made together with those of the next layers."""
        if layer not in self._grouped:
            assert group.scale is not None, "a closed group has its gains"
            columns, first = self._columns(number), group.layers.index(layer)
            blocked, length = self._known.blocked[..., columns], self._stages[number][1].length
            count = max(1, ELEMENTS_AT_ONCE // (len(blocked) * group.scale.shape[2] * length))
            whole = count >= len(group.layers)
            scale = group.scale if whole else group.scale[first : first + count]
            masks = self._with_waiting(number, torch.addcmul(blocked, self._bias(terms)[..., columns], scale))
            made = zip(
                group.layers if whole else group.layers[first:], masks.to(self._known.dtype).unbind(0), strict=False
            )
            self._grouped = {**(self._grouped if whole else {}), **dict(made)}
        return self._grouped[layer]

    def _with_waiting(self, number: int, joined: Tensor) -> Tensor:
        """Masks [..., joined keys] continued over the text keys since, and the query's own."""
        ledger = self._stages[number][1]
        if ledger.mask is None or ledger.waiting == 1:
            return pad(joined, (0, ledger.waiting))
        hidden = self._hidden(ledger)
        return torch.cat([joined, hidden.expand(*joined.shape[:-1], -1)], -1)

    def _hidden(self, ledger: Ledger) -> Tensor:
        """[batch, 1, 1, waiting]: text keys that the call's mask hides; the query's own key is never hidden."""
        where = "waiting", ledger.waiting
        if where not in self._masks:
            assert ledger.mask is not None
            hidden = ledger.mask[:, None, None, -ledger.waiting : -1].to(self._known.blocked.device) == 0
            self._masks[where] = pad(hidden * torch.finfo(self._known.dtype).min, (0, 1))
        return self._masks[where]

    def _blocked(self, number: int, rule: MaskRule, keys: int) -> Tensor:
        """[batch, heads or 1, 1, keys]: what a rule hides of the last keys of a stage."""
        where = number, rule.visible, keys
        if rule.mask is None and where in self._masks:
            return self._masks[where]
        blocked = ~visible(self._stages[number][1], rule, None, 1, keys) * torch.finfo(self._known.dtype).min
        if rule.mask is None:  # no other layer has a mask that one has made itself
            self._masks[where] = blocked
        return blocked


def _moved(positions: Tensor, shift: Tensor) -> Tensor:
    return positions + shift.view(-1, *[1] * (positions.ndim - 1))
