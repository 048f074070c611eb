"""The ledger: it records what every cached key of a stage is; causality, padding and bias are derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from covist.errors import CovistError


@dataclass(frozen=True)
class Keys:
    """Properties of a run of keys, a row per sample; the tensors are never written in place."""

    positions: Tensor  # [batch, keys] or [batch, keys, axes] RoPE positions
    valid: Tensor  # [batch, keys] bool, False for padding
    image: Tensor  # [batch, keys] which reduced image a visual key belongs to, -1 for every other key
    log_weight: Tensor  # [batch, keys] float32, log m of visual keys, 0 elsewhere

    @classmethod
    def of_text(cls, positions: Tensor, valid: Tensor) -> Keys:
        """Ordinary tokens."""
        return cls(
            positions=positions,
            valid=valid,
            image=torch.full(valid.shape, -1, device=valid.device),
            log_weight=torch.zeros(valid.shape, dtype=torch.float32, device=valid.device),
        )

    def concat(self, later: Keys) -> Keys:
        return Keys(*(torch.cat([own, others], 1) for own, others in zip(self.tensors(), later.tensors(), strict=True)))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.positions, self.valid, self.image, self.log_weight


@dataclass
class Ledger:
    """Keys of one stage, a row per sample, padded on the left. It grows with its cache.

    Decoding adds text keys one by one. They wait in `fed` until `keys` is read, so a step needs no device operation.
    Nothing that a step needs on the host is read from the device: the plain numbers below are known after a prefill, or
    are bounds that grow with the number of tokens.
    """

    joined: Keys
    shift: Tensor  # [batch] by how much the positions of later tokens are below the uncompressed ones
    shifted: bool  # whether any shift is not 0
    padded: bool  # whether any key may be padding
    reduced: bool  # whether any key is biased
    reach: int  # no position is larger, and so no distance between two keys
    images: int = 0  # numbers given to images so far
    text_tail: int = 0  # at least this many of the last keys are text in every sample
    fed: list[Tensor] = field(default_factory=list)  # [batch, tokens(, axes)] uncompressed positions of text keys
    mask: Tensor | None = None  # [batch, all tokens] of the last call that fed keys; None: all of them are valid
    prepared: object = None  # what a decoding step keeps for the next one; cleared when `joined` changes

    @property
    def length(self) -> int:
        return self.joined.valid.shape[1] + self.waiting

    @property
    def waiting(self) -> int:
        """Number of text keys that are not yet joined to the others."""
        return sum(positions.shape[1] for positions in self.fed)

    @property
    def keys(self) -> Keys:
        """All keys."""
        if self.fed:
            self._join()
        return self.joined

    @property
    def positions(self) -> Tensor:
        return self.keys.positions

    @property
    def valid(self) -> Tensor:
        return self.keys.valid

    @property
    def image(self) -> Tensor:
        return self.keys.image

    @property
    def log_weight(self) -> Tensor:
        return self.keys.log_weight

    @property
    def visual(self) -> Tensor:
        """[batch, keys] bool: keys that receive a bias."""
        return self.image >= 0

    @classmethod
    def of_text(cls, positions: Tensor, valid: Tensor) -> Ledger:
        """A ledger of ordinary tokens. Not for decoding steps: it reads two numbers from the device."""
        return cls(
            joined=Keys.of_text(positions, valid),
            shift=torch.zeros(len(valid), dtype=torch.long, device=valid.device),
            shifted=False,
            padded=not bool(valid.all()),
            reduced=False,
            reach=int(positions.max()),
            text_tail=valid.shape[1],
        )

    def copy(self) -> Ledger:
        """A ledger that can grow independently."""
        return replace(self, fed=list(self.fed))

    def feed(self, positions: Tensor, mask: Tensor | None, bound: int, masked: bool = True) -> None:
        """Add text keys with these uncompressed positions, none of them above `bound`, under the call's mask.

        `masked`: whether the attention always gets an explicit mask. Only if it may not, whether a key is padding is
        read from the device, as in the plain model.
        """
        tokens = positions.shape[1]
        if (
            self.fed
            and (mask is None) != (self.mask is None)
            or mask is not None
            and mask.shape[1] < self.waiting + tokens
        ):
            self._join()
        self.fed.append(positions)
        self.mask = mask
        if not masked and not self.padded and mask is not None:
            self.padded = not bool((mask[:, -tokens:] != 0).all())
        self.reach = max(self.reach, bound)
        self.text_tail += tokens

    def with_weights(self, log_weight: Tensor) -> Ledger:
        """The same keys with other weights [batch, keys]."""
        return replace(self.copy(), joined=replace(self.keys, log_weight=log_weight), fed=[], prepared=None)

    def rotated_as(self, seen: Ledger, columns: Tensor) -> Ledger:
        """The same keys at the positions that they had as `columns` [batch, keys] of another ledger.

        The layers of `seen` rotated the keys at these positions, so later tokens must be placed relative to them.
        """
        index = columns.to(seen.positions.device).view(*columns.shape, *[1] * (seen.positions.ndim - 2))
        positions = seen.positions.gather(1, index.expand(-1, -1, *seen.positions.shape[2:]))
        keys = replace(self.keys, positions=positions)
        return replace(self.copy(), joined=keys, fed=[], shift=seen.shift, shifted=seen.shifted, reach=seen.reach)

    def concat(self, later: Ledger) -> Ledger:
        """This ledger followed by the keys of a later prefill (another turn with its own images)."""
        new = later.keys
        image = torch.where(new.image >= 0, new.image + self.images, new.image)
        return Ledger(
            joined=self.keys.concat(replace(new, positions=self.placed(new.positions), image=image)),
            shift=self.shift + later.shift,
            shifted=self.shifted or later.shifted,
            padded=self.padded or later.padded,
            reduced=self.reduced or later.reduced,
            reach=max(self.reach, later.reach),
            images=self.images + later.images,
            text_tail=later.text_tail + (self.text_tail if later.text_tail == later.length else 0),
        )

    def rearrange(self, rows: Tensor) -> None:
        """Select samples, as beam search does with the cache."""
        rows = rows.to(self.shift.device)
        self._replace(Keys(*(values.index_select(0, rows) for values in self.keys.tensors())))
        self.shift = self.shift.index_select(0, rows)

    def repeat(self, times: int) -> None:
        self.rearrange(torch.arange(len(self.shift)).repeat_interleave(times))

    def crop(self, keys: int) -> None:
        """Forget the last `keys` keys, which must be text: a reduction cannot be undone."""
        if keys > self.text_tail:
            raise CovistError("the cache cannot be cropped into a compressed image; start again from the prompt")
        self._replace(Keys(*(values[:, :-keys] for values in self.keys.tensors())))
        self.text_tail -= keys

    def placed(self, positions: Tensor) -> Tensor:
        """The compressed positions of tokens with these uncompressed positions [batch, tokens(, axes)]."""
        shift = self.shift.view(-1, *[1] * (positions.ndim - 1))
        return (positions - shift).clamp(min=0)  # padding may have any position

    def _validity(self, positions: Tensor) -> Tensor:
        """[batch, waiting] bool. The mask of a call covers all tokens that the model was given; these are the last."""
        batch, waiting = positions.shape[:2]
        if self.mask is None:
            return torch.ones(batch, waiting, dtype=torch.bool, device=positions.device)
        return self.mask[:, -waiting:].to(positions.device) != 0

    def _join(self) -> None:
        positions = torch.cat(self.fed, 1)
        self._replace(self.joined.concat(Keys.of_text(self.placed(positions), self._validity(positions))))

    def _replace(self, keys: Keys) -> None:
        self.joined, self.fed, self.mask, self.prepared = keys, [], None, None
