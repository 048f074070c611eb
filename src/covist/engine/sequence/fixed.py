"""The ledger of a static cache: a column for every key that it has room for, in tensors whose addresses stay."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from covist.engine.sequence.ledger import Keys, Ledger


class FixedKeys:
    """What a static cache knows about its keys.

    Free columns already say which token will fill them, and causality hides them until then, as it does in the plain
    model. So a decoding step only writes where its token stands and counts it: nothing here changes its shape or its
    address, and nothing is read from the device, so the step can be compiled and recorded.
    """

    def __init__(self, ledger: Ledger, room: int):
        self.room = room
        self.rule: Any = None  # what steps add to their logits, made for these columns
        self.only_eager = ""  # why a step cannot be compiled
        self.keys = self._columns(ledger)
        device = self.keys.rows.device
        self.shift = ledger.shift.clone()  # [batch]
        self.held = torch.zeros((), dtype=torch.long, device=device)  # keys
        self.removed = torch.zeros((), dtype=torch.long, device=device)  # tokens that were given and are not among them
        for tensor in (*_tensors(self.keys), self.shift, self.held, self.removed):
            torch._dynamo.mark_static_address(tensor)

    @property
    def given(self) -> Tensor:
        """[] tokens that the model was given."""
        return self.held + self.removed

    def fits(self, ledger: Ledger, room: int) -> bool:
        """Whether a ledger can be written here."""
        positions, here = ledger.joined.positions, self.keys.positions
        alike = (positions.shape[2:], positions.dtype, positions.device) == (here.shape[2:], here.dtype, here.device)
        return alike and len(positions) == len(here) and room == self.room

    def write(self, ledger: Ledger) -> None:
        """Hold the keys of `ledger`, and what comes after them."""
        for here, columns in zip(_tensors(self.keys), _tensors(self._columns(ledger)), strict=True):
            here.copy_(columns)
        self.shift.copy_(ledger.shift)
        self.held.fill_(ledger.length)
        self.removed.fill_(ledger.given - ledger.length)
        if self.rule is not None:
            self.rule.write(self.keys)

    def ledger(self, last: Ledger) -> Ledger:
        """What the ledger that was written `last` has become by the steps since; reads one number from the device."""
        steps = int(self.held) - last.length
        if not steps:
            return last
        given = last.given + steps
        return replace(
            last.flushed(),
            joined=self.keys.each(lambda values: values[:, : last.length + steps].clone()),
            reach=max(last.reach + steps, given - 1),
            given=given,
            text_tail=last.text_tail + steps,
        )

    def place(self, positions: Tensor) -> Tensor:
        """Where one more token per sample stands that has these uncompressed positions [(axes,) batch, 1]."""
        placed = (positions - self.shift[:, None]).clamp(min=0)
        here = self.keys.positions
        self.keys.positions.index_copy_(1, self.held[None], per_axis(placed, here.shape[2:]).to(here))
        return placed

    def _columns(self, ledger: Ledger) -> Keys:
        keys = ledger.keys
        free = torch.ones(len(keys.valid), self.room - keys.count, dtype=torch.bool, device=keys.valid.device)
        positions = keys.positions.new_zeros(*free.shape, *keys.positions.shape[2:])
        return keys.concat(Keys.of_text(ledger.given, positions, free))


def per_axis(positions: Tensor, axes: Any) -> Tensor:
    """Positions as a text model takes them -> [batch, tokens, *axes]; see `FrozenDecoder.per_axis`."""
    if not axes:
        return positions
    (count,) = axes
    return positions.reshape(-1, *positions.shape[-2:])[-count:].expand(count, -1, -1).permute(1, 2, 0)


def _tensors(keys: Keys) -> list[Tensor]:
    return [getattr(keys, item.name) for item in fields(keys)]
