"""An image as the prompt receives it: the remaining rows, with side columns for their positions and weights.

vLLM passes encoder outputs from its cache to the decoder in whatever slices a step needs: parts of an image in chunked
prefill, the rest of one after a prefix hit, all of it again after a preemption. The data of a row must therefore be
part of it. Each row ends with columns that every dtype represents exactly or nearly so:

    [ visual,  log m rounded,  rest of log m,  offset / 128 and offset % 128 of every axis ]

Whole numbers up to 256 are exact in bfloat16. log m is split as in `formulas.wide_heads`; with both parts its error is
2^-17 of it in bfloat16, and zero in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.formulas.positions import compress_positions
from covist.state import VisualState

BASE = 128
LARGEST_OFFSET = BASE * 256
"""Offsets from the first position of an image must be smaller."""
WEIGHT_COLUMNS = 3


def side_columns(axes: int) -> int:
    """How many columns follow the embeddings."""
    return WEIGHT_COLUMNS + 2 * axes


@dataclass(frozen=True)
class Side:
    """The side columns of rows.

    visual: whether a row stands for others and is therefore biased, [n]
    log_weight: log m, [n]
    offsets: positions relative to the first of the image, [n, axes]
    """

    visual: Tensor
    log_weight: Tensor
    offsets: Tensor

    def pack(self, like: Tensor) -> Tensor:
        """[n, columns] in the dtype of the embeddings."""
        rounded = self.log_weight.bfloat16().float()
        weight = torch.stack([self.visual.float(), rounded, self.log_weight.float() - rounded], -1)
        digits = torch.stack([self.offsets // BASE, self.offsets % BASE], -1).flatten(1)
        return torch.cat([weight, digits.to(weight)], -1).to(like)

    @classmethod
    def unpack(cls, columns: Tensor) -> Side:
        """From columns [n, columns]; rows of zeros are text."""
        columns = columns.float()
        digits = columns[:, WEIGHT_COLUMNS:].long().unflatten(1, (-1, 2))  # [n, axes, 2]
        return cls(columns[:, 0] > 0, columns[:, 1] + columns[:, 2], digits[..., 0] * BASE + digits[..., 1])


def whole_rows(span: Tensor, offsets: Tensor) -> Tensor:
    """All rows of an uncompressed image [n, d], at `offsets` [n, axes] from its first position."""
    nothing = torch.zeros(len(span), device=span.device)
    return torch.cat([span, Side(nothing.bool(), nothing, offsets).pack(span)], -1)


def image_rows(
    signals: ImageSignals, state: VisualState, method: Method, budget: int, before: int = 0, grid: Tensor | None = None
) -> Tensor:
    """The remaining rows of an image, markers included, in the order of the prompt, [rows, d + columns].

    Features that are added before later layers are between the embeddings and the columns.
    before: positions that earlier frames of the same video take
    grid: offsets of all rows, [n, axes], if positions have several axes
    """
    device = state.indices.device
    contents = signals.content_rows.to(device)[state.indices]  # in the span
    markers = (~signals.content).nonzero()[:, 0].to(device)
    order = torch.cat([contents, markers]).argsort()
    own = torch.cat([state.features, *(state.companions[layer] for layer in sorted(state.companions))], -1)
    between = F.pad(signals.span[markers], (0, own.shape[1] - signals.span.shape[1]))
    features = torch.cat([own.to(between), between])[order]
    reduced = state.count < signals.grid.size
    visual = torch.cat([torch.full_like(contents, reduced), torch.zeros_like(markers)])[order].bool()
    log_weight = torch.cat([state.weights.float().log(), torch.zeros_like(markers, dtype=torch.float32)])[order]
    if grid is None:
        original = torch.cat([state.positions, markers])[order]
        offsets = before + _offsets(original, len(signals.content), method, budget)[:, None]
    else:  # renumbering would destroy it
        offsets = torch.cat([state.positions, grid[markers]])[order]
    return torch.cat([features, Side(visual, log_weight * visual, offsets).pack(features)], -1)


def _offsets(original: Tensor, length: int, method: Method, budget: int) -> Tensor:
    """Positions of the rows relative to the image's first one, [rows], by the method's position rule."""
    if method.positions == "reindex":
        return torch.arange(len(original), device=original.device)
    return compress_positions(original, 0, method.position_span(length, budget), length)


def occupied_positions(method: Method, length: int, rows: int, budget: int) -> int:
    """How many positions an image of `length` tokens takes if `rows` remain; the text after it follows.

    With multidimensional positions, the grid determines this instead.
    """
    if rows == length:
        return length
    return rows if method.positions == "reindex" else method.position_span(length, budget)
