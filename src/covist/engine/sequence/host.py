"""Between host and device: every read makes the host wait, so what a call needs is read together, and once.

What is known on the host (ids, masks, positions, and all that follows from them) is computed there, on CPU tensors,
and goes to the device in one transfer for which nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from covist.devices import to_device


class HostCopies:
    """Tensors of a call on the host, each read once."""

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, Tensor]] = []  # (as the call was given it, on the host)

    def read(self, *tensors: Tensor | None) -> list[Tensor | None]:
        """Tensors of whole numbers or truth values on the host; those of a device in one transfer."""
        missing = [one for one in tensors if one is not None and self._of(one) is None]
        for device in dict.fromkeys(one.device for one in missing):
            here = [one for one in missing if one.device == device]
            self._known += zip(here, _downloaded(here), strict=True)
        return [None if one is None else self._of(one) for one in tensors]

    def _of(self, tensor: Tensor) -> Tensor | None:
        return next((copy for given, copy in self._known if given is tensor), None)


def _downloaded(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host, as int64."""
    if len(tensors) == 1:
        return [tensors[0].cpu().long()]
    whole = torch.cat([one.reshape(-1).long() for one in tensors]).cpu()
    parts = whole.split([one.numel() for one in tensors])
    return [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]


def upload(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of whole numbers of the host on a device, in one transfer."""
    whole = to_device(torch.cat([part.reshape(-1) for part in parts]), device)
    pieces = whole.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def at_rows(values: Tensor, rows: Tensor) -> Tensor:
    """The rows [k] of values [n, ...] on a device, for rows that are known on the host."""
    return values[to_device(rows, values.device)]
