"""A decoding step over a static cache, in tensors of fixed shape: what `torch.compile` and CUDA graphs can take.

The same code runs compiled and uncompiled. It keeps to tensors whose addresses stay and reads neither settings nor
numbers that differ between prompts, so one compilation serves prompts and budgets of any size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covist.backends import Attended, takes_no_mask
from covist.contract.family import Family
from covist.contract.method import AttentionRule
from covist.engine.attention.interface import AttentionCall, MaskRule, backend_of, grown_to
from covist.engine.attention.mask import BLOCKED, Terms, as_additive
from covist.engine.sequence.fixed import FixedKeys, per_axis
from covist.engine.sequence.ledger import Keys, Ledger
from covist.errors import CovistError


class FixedTerms:
    """What layers with equal terms of Eq. 9 add to their logits, before their gains."""

    def __init__(self, terms: Terms, keys: Keys, reach: int):
        self._terms = terms
        self.log_weights = terms.log_weights(keys).clone()  # [batch, room]
        self.takes = terms.takes_distance(keys).clone()  # [batch, room] bool
        self.table = None if terms.distance is None else terms.distance.covering(reach, keys.rows.device).clone()

    @property
    def tensors(self) -> list[Tensor]:
        return [self.log_weights, self.takes, *([] if self.table is None else [self.table])]

    def write(self, keys: Keys) -> None:
        self.log_weights.copy_(self._terms.log_weights(keys))
        self.takes.copy_(self._terms.takes_distance(keys))

    def bias(self, query: Tensor, positions: Tensor) -> Tensor:
        """[batch, 1, 1, room] for queries at [batch, 1(, axes)] and keys at [batch, room(, axes)]."""
        weights, distance = self.log_weights[:, None, None], self._terms.distance
        if distance is None or self.table is None:
            return weights
        factor = distance.log_factor_in(self.table, query, positions)[:, None]
        return weights + factor.masked_fill(~self.takes[:, None, None], 0.0)


class FixedRule:
    """An attention rule at the columns of a static cache."""

    def __init__(self, rule: AttentionRule, keys: FixedKeys, reach: int):
        """`reach`: no position will be larger."""
        by_layer = [Terms.of(rule, layer) for layer in range(len(rule.scale))]
        distinct = list(dict.fromkeys(by_layer))
        self.group_of = [distinct.index(terms) for terms in by_layer]  # layer -> the place of its terms
        self.groups = [FixedTerms(terms, keys.keys, reach) for terms in distinct]
        self.scale = rule.scale.to(keys.held.device, copy=True)  # [layers, heads or 1]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.scale, *(tensor for group in self.groups for tensor in group.tensors)]

    def write(self, keys: Keys) -> None:
        """Follow keys that have changed."""
        for group in self.groups:
            group.write(keys)

    def at_the_addresses_of(self, other: object) -> FixedRule:
        """The same rule in the tensors of an earlier one, if they are alike; else at addresses of its own."""
        if isinstance(other, FixedRule) and other.group_of == self.group_of:
            pairs = list(zip(other.tensors, self.tensors, strict=False))
            if len(pairs) == len(self.tensors) and all(_alike(*pair) for pair in pairs):
                for there, here in pairs:
                    there.copy_(here)
                return other
        for tensor in self.tensors:
            torch._dynamo.mark_static_address(tensor)
        return self


def hold_fixed(
    ledger: Ledger, room: int, rule: AttentionRule | None, decoder: Any, before: FixedKeys | None
) -> FixedKeys:
    """The keys of a ledger for the steps of a static cache, at the addresses of an earlier one where possible."""
    keys = before if before is not None and before.fits(ledger, room) else FixedKeys(ledger, room)
    earlier, keys.rule, keys.only_eager = keys.rule, None, _only_eager(decoder)
    keys.write(ledger)
    if rule is not None and not keys.only_eager:
        # Rounded up, so that tables of different prompts have the same size.
        reach = 1 << (max(ledger.reach, ledger.given) + room).bit_length()
        keys.rule = FixedRule(rule.while_decoding, keys, reach).at_the_addresses_of(earlier)
    return keys


def _only_eager(decoder: Any) -> str:
    """Why a step over a static cache cannot be compiled, if it cannot."""
    backend = backend_of(decoder)
    if takes_no_mask(backend):
        return f"{backend} takes no mask, so the bias of a step depends on its length; load the model with 'sdpa'"
    types = {str(getattr(part, "rope_type", "")) for part in decoder.modules()}
    if any(changing in one for one in types for changing in ("dynamic", "longrope")):
        return "the decoder changes its rotary frequencies as it goes"
    if "chunked_attention" in (getattr(decoder.config, "layer_types", None) or ()):
        return "the chunks of the decoder begin where the padding of each prompt ends"
    return ""


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


class FixedStep:
    """One token per sample after a compressed prompt; see `Pass` for what the hooks call."""

    def __init__(self, keys: FixedKeys, family: Family | None = None):
        self.inside = self.entered = False
        self.family, self._keys = family, keys
        self._rule: FixedRule | None = keys.rule
        self._shown: list[tuple[MaskRule, int, Tensor]] = []  # what layers with the same rule and room see
        self._biases: dict[int, Tensor] = {}

    def enter(self, module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the text model."""
        self.entered = True
        keys, positions = self._keys, arguments.get("position_ids")
        self._row, self._column = keys.given, keys.held.clone()
        if positions is None:
            positions = self._row.expand(len(keys.shift), 1)
        placed = keys.place(positions)
        self._query = per_axis(placed, keys.keys.positions.shape[2:])
        return {**arguments, "position_ids": placed, "attention_mask": None}

    def turn(self, module: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """Rotary embeddings need no second look: all layers are at the same positions."""

    def enter_layer(self, index: int, args: tuple, kwargs: dict[str, Any]) -> None:
        self.inside = True

    def attend(self, call: AttentionCall) -> Attended:
        """The attention of a layer."""
        rows = self._row.expand(len(call.query), 1).to(call.query.device)
        call = grown_to(call, rows, self._column[None].to(rows.device))
        room, layer = call.key.shape[2], call.layer
        shown = self._shown_by(call.rule, room)
        if self._rule is None and call.backend == "sdpa":
            return call.under(shown.to(call.query.device))
        mask = torch.zeros(shown.shape, dtype=torch.float32, device=shown.device).masked_fill(~shown, BLOCKED)
        if self._rule is not None:
            mask = torch.addcmul(mask, self._bias(layer, room), self._rule.scale[layer][:, None, None])
        return call.under(as_additive(mask, call.query))

    def leave(self, output: Any) -> Any:
        """The output of the text model, after which the token is one of the keys."""
        self.inside = False
        self._keys.held.add_(1)
        return output

    def _shown_by(self, rule: MaskRule, room: int) -> Tensor:
        """[batch, heads or 1, 1, room] bool: what the token sees of a layer's keys."""
        for known, size, shown in self._shown:
            if known is rule and size == room:
                return shown
        rows, valid = (self._of_layer(values, room) for values in (self._keys.keys.rows, self._keys.keys.valid))
        samples = torch.arange(len(rows), device=rows.device)
        shown = rule.at(samples, self._row.expand(len(rows), 1), rows, slice(None)) & valid[:, None, None]
        self._shown.append((rule, room, shown))
        return shown

    def _bias(self, layer: int, room: int) -> Tensor:
        """[batch, 1, 1, room]: Eq. 9 before the gains of the layer."""
        assert self._rule is not None, "without a rule there is no bias"
        group = self._rule.group_of[layer]
        if group not in self._biases:
            self._biases[group] = self._rule.groups[group].bias(self._query, self._keys.keys.positions)
        return self._of_layer(self._biases[group], room)

    def _of_layer(self, values: Tensor, room: int) -> Tensor:
        """Of values [..., columns], those of a layer with room for `room` keys.

        A window holds the first keys, or the last if there are more by now; the running token is counted.
        """
        if room == self._keys.room:
            return values
        if room > self._keys.room:
            raise CovistError("a layer attends to more keys than the static cache has room for")
        first = (self._column + 1 - room).clamp(min=0)
        return values.index_select(-1, torch.arange(room, device=first.device) + first)
