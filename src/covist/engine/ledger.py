"""The ledger: what every cached key of a stage is, so that causality, padding and bias can be derived from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covist.errors import CovistError

_PER_KEY = ("positions", "valid", "image", "log_weight")


@dataclass
class Ledger:
    """Keys of one stage, a row per sample, padded on the left. Grows with the cache that it belongs to."""

    positions: Tensor  # [batch, keys] or [batch, keys, axes] RoPE positions
    valid: Tensor  # [batch, keys] bool, False for padding
    image: Tensor  # [batch, keys] which reduced image a visual key belongs to, -1 for every other key
    log_weight: Tensor  # [batch, keys] float32, log m of visual keys, 0 elsewhere
    shift: Tensor  # [batch] how far the positions of later tokens lie before the uncompressed ones
    padded: bool  # whether any key is padding; read from the device once, when the keys come, like the next two
    reduced: bool  # whether any key is biased
    reach: int  # no position is larger, and so no distance between two keys
    images: int = 0  # numbers given to images so far

    @property
    def length(self) -> int:
        return self.valid.shape[1]

    @property
    def visual(self) -> Tensor:
        """[batch, keys] bool: keys that receive a bias."""
        return self.image >= 0

    @classmethod
    def of_text(cls, positions: Tensor, valid: Tensor) -> Ledger:
        """A ledger of ordinary tokens."""
        return cls(
            positions=positions,
            valid=valid,
            image=torch.full(valid.shape, -1, device=valid.device),
            log_weight=torch.zeros(valid.shape, dtype=torch.float32, device=valid.device),
            shift=torch.zeros(len(valid), dtype=torch.long, device=valid.device),
            padded=not bool(valid.all()),
            reduced=False,
            reach=int(positions.max()),
        )

    def copy(self) -> Ledger:
        """A ledger that can grow on its own (the tensors are never written in place)."""
        return replace(self)

    def append(self, text: Ledger) -> None:
        """Add text keys, whose positions are the uncompressed ones."""
        vars(self).update(vars(self.concat(text)))

    def concat(self, later: Ledger) -> Ledger:
        """This ledger followed by the keys of a later prefill (another turn with its own images)."""
        image = torch.where(later.visual, later.image + self.images, later.image)
        shift = self.shift.view(-1, *[1] * (later.positions.ndim - 1))
        placed = (later.positions - shift).clamp(min=0)  # padding may have any position
        return Ledger(
            positions=torch.cat([self.positions, placed], 1),
            valid=torch.cat([self.valid, later.valid], 1),
            image=torch.cat([self.image, image], 1),
            log_weight=torch.cat([self.log_weight, later.log_weight], 1),
            shift=self.shift + later.shift,
            padded=self.padded or later.padded,
            reduced=self.reduced or later.reduced,
            reach=max(self.reach, later.reach),
            images=self.images + later.images,
        )

    def rearrange(self, rows: Tensor) -> None:
        """Select samples, as beam search does with the cache."""
        for name in (*_PER_KEY, "shift"):
            values = getattr(self, name)
            setattr(self, name, values.index_select(0, rows.to(values.device)))

    def repeat(self, times: int) -> None:
        self.rearrange(torch.arange(self.valid.shape[0]).repeat_interleave(times))

    def crop(self, keys: int) -> None:
        """Forget the last `keys` keys, which must be text: a reduction cannot be undone."""
        if bool(self.visual[:, -keys:].any()):
            raise CovistError("the cache cannot be cropped into a compressed image; start again from the prompt")
        for name in _PER_KEY:
            setattr(self, name, getattr(self, name)[:, :-keys])
