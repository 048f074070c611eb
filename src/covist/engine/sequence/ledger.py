"""The ledger: it records what every key of a stage is; what a query sees and its bias are derived from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from covist.errors import CovistError


@dataclass(frozen=True)
class Keys:
    """Properties of a run of keys, a row per sample; the tensors are never written in place."""

    rows: Tensor  # [batch, keys] which of the tokens that the model was given, counting padding and removed tokens
    positions: Tensor  # [batch, keys] or [batch, keys, axes] RoPE positions
    valid: Tensor  # [batch, keys] bool, False for padding
    image: Tensor  # [batch, keys] which reduced image a visual key belongs to, -1 for every other key
    log_weight: Tensor  # [batch, keys] float32, log m of visual keys, 0 elsewhere

    @classmethod
    def of_text(cls, first: int, positions: Tensor, valid: Tensor) -> Keys:
        """Ordinary tokens, of which the model had been given `first` others before."""
        device = valid.device
        return cls(
            rows=torch.arange(first, first + valid.shape[1], device=device).expand(valid.shape),
            positions=positions,
            valid=valid,
            image=torch.full(valid.shape, -1, device=device),
            log_weight=torch.zeros(valid.shape, dtype=torch.float32, device=device),
        )

    @property
    def visual(self) -> Tensor:
        """[batch, keys] bool: keys of reduced images."""
        return self.image >= 0

    @property
    def count(self) -> int:
        return self.valid.shape[1]

    def each(self, change: Callable[[Tensor], Tensor]) -> Keys:
        """The keys with every tensor changed in the same way."""
        return Keys(*(change(getattr(self, item.name)) for item in fields(self)))

    def concat(self, later: Keys) -> Keys:
        names = [item.name for item in fields(self)]
        return Keys(*(torch.cat([getattr(self, name), getattr(later, name)], 1) for name in names))


@dataclass(frozen=True)
class Ledger:
    """Keys of one stage, a row per sample, padded on the left. It never changes: a pass makes the next one.

    Decoding adds text keys one by one. They wait until `flushed` joins them to the others, so a step needs no device
    operation. Nothing that a step needs on the host is read from the device: the plain numbers below are known after a
    prefill, or are bounds that grow with the number of tokens.
    """

    joined: Keys
    shift: Tensor  # [batch] by how much the positions of later tokens are below the uncompressed ones
    shifted: bool  # whether any shift is not 0
    padded: bool  # whether any key may be padding
    reduced: bool  # whether any key is biased
    reach: int  # no position is larger, and so no distance between two keys
    given: int  # tokens that the model was given so far
    images: int = 0  # numbers given to images so far
    text_tail: int = 0  # at least this many of the last keys are text in every sample
    waiting: int = 0  # text keys that are not yet joined
    fed: list[Tensor] = field(default_factory=list)  # [batch, tokens(, axes)] uncompressed positions of waiting keys
    parts: int = 0  # how many of `fed` belong to this ledger; an interrupted pass may have added more
    mask: Tensor | None = None  # [batch, all tokens] of the last call that fed keys; None: all of them are valid

    @property
    def length(self) -> int:
        return self.joined.count + self.waiting

    @property
    def keys(self) -> Keys:
        """All keys."""
        return self.flushed().joined

    @classmethod
    def of_text(cls, positions: Tensor, valid: Tensor) -> Ledger:
        """A ledger of ordinary tokens. Not for decoding steps: it reads two numbers from the device."""
        return cls(
            joined=Keys.of_text(0, positions, valid),
            shift=torch.zeros(len(valid), dtype=torch.long, device=valid.device),
            shifted=False,
            padded=not bool(valid.all()),
            reduced=False,
            reach=int(positions.max()),
            given=valid.shape[1],
            text_tail=valid.shape[1],
        )

    def grown(self, positions: Tensor, mask: Tensor | None, bound: int, masked: bool = True) -> Ledger:
        """With further text keys at these uncompressed positions, none of them above `bound`, under the call's mask.

        `masked`: whether the attention always gets an explicit mask. Only if it may not, whether a key is padding is
        read from the device, as in the plain model.
        """
        tokens, before = positions.shape[1], self
        if before.waiting and (
            (mask is None) != (before.mask is None) or mask is not None and mask.shape[1] < before.waiting + tokens
        ):
            before = before.flushed()
        del before.fed[before.parts :]
        before.fed.append(positions)
        hidden = not masked and not before.padded and mask is not None and not bool((mask[:, -tokens:] != 0).all())
        return replace(
            before,
            parts=before.parts + 1,
            waiting=before.waiting + tokens,
            mask=mask,
            padded=before.padded or hidden,
            reach=max(before.reach, bound),
            given=before.given + tokens,
            text_tail=before.text_tail + tokens,
        )

    def flushed(self) -> Ledger:
        """With all keys joined."""
        if not self.waiting:
            return self
        positions = torch.cat(self.fed[: self.parts], 1)
        later = Keys.of_text(self.given - self.waiting, self.placed(positions), self.waiting_valid(positions.device))
        return self._with_keys(self.joined.concat(later))

    def waiting_valid(self, device: torch.device) -> Tensor:
        """[batch, waiting] bool. The mask of a call covers all tokens that the model was given; these are the last."""
        if self.mask is None:
            return torch.ones(len(self.shift), self.waiting, dtype=torch.bool, device=device)
        return self.mask[:, -self.waiting :].to(device) != 0

    def last(self, count: int) -> tuple[Tensor, Tensor]:
        """Rows and validity [batch, count] of the last keys, without joining the others."""
        if not self.waiting:
            return self.joined.rows[:, -count:], self.joined.valid[:, -count:]
        device, early = self.joined.rows.device, max(0, count - self.waiting)
        rows = torch.arange(self.given - self.waiting, self.given, device=device).expand(len(self.shift), -1)
        valid = self.waiting_valid(device)
        if early:
            start = self.joined.count - early
            rows = torch.cat([self.joined.rows[:, start:], rows], 1)
            valid = torch.cat([self.joined.valid[:, start:], valid], 1)
        return rows[:, -count:], valid[:, -count:]

    def rotated_as(self, seen: Ledger, columns: Tensor) -> Ledger:
        """The same keys at the positions that they had as `columns` [batch, keys] of another ledger.

        The layers of `seen` rotated the keys at these positions, so later tokens must be placed relative to them.
        """
        positions = seen.keys.positions
        index = columns.to(positions.device).view(*columns.shape, *[1] * (positions.ndim - 2))
        rotated = positions.gather(1, index.expand(-1, -1, *positions.shape[2:]))
        moved = self._with_keys(replace(self.keys, positions=rotated))
        return replace(moved, shift=seen.shift, shifted=seen.shifted, reach=seen.reach)

    def concat(self, later: Ledger) -> Ledger:
        """This ledger followed by the keys of a later prefill (another turn with its own images)."""
        new = later.keys
        image = torch.where(new.visual, new.image + self.images, new.image)
        return Ledger(
            joined=self.keys.concat(replace(new, positions=self.placed(new.positions), image=image)),
            shift=self.shift + later.shift,
            shifted=self.shifted or later.shifted,
            padded=self.padded or later.padded,
            reduced=self.reduced or later.reduced,
            reach=max(self.reach, later.reach),
            given=later.given,
            images=self.images + later.images,
            text_tail=later.text_tail + (self.text_tail if later.text_tail == later.length else 0),
        )

    def select(self, samples: Tensor) -> Ledger:
        """The ledger of some samples, as beam search selects them from the cache."""
        index = samples.to(self.shift.device)
        chosen = self._with_keys(self.keys.each(lambda values: values.index_select(0, index)))
        return replace(chosen, shift=self.shift.index_select(0, index))

    def repeat(self, times: int) -> Ledger:
        return self.select(torch.arange(len(self.shift)).repeat_interleave(times))

    def check_crop(self, keys: int) -> None:
        """Refuse to forget more than text: a reduction cannot be undone."""
        if keys > self.text_tail:
            raise CovistError("the cache cannot be cropped into a compressed image; start again from the prompt")

    def crop(self, keys: int) -> Ledger:
        """Without the last `keys` keys."""
        self.check_crop(keys)
        kept = self._with_keys(self.keys.each(lambda values: values[:, : values.shape[1] - keys]))
        return replace(kept, given=self.given - keys, text_tail=self.text_tail - keys)

    def placed(self, positions: Tensor) -> Tensor:
        """The compressed positions of tokens with these uncompressed positions [batch, tokens(, axes)]."""
        shift = self.shift.view(-1, *[1] * (positions.ndim - 1))
        return (positions - shift).clamp(min=0)  # padding may have any position

    def _with_keys(self, keys: Keys) -> Ledger:
        return replace(self, joined=keys, fed=[], parts=0, waiting=0, mask=None)
