"""PriorTR: tokens to which the text attends more than the prior of the image explains."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from covist.contract.views import DecoderView
from covist.errors import CovistError
from covist.methods.inside import NominalCounts, ScoreInside, last_prompt_row, text_rows
from covist.methods.published import register_published

SMALLEST = 1e-10


@register_published
class PriorTR(NominalCounts, ScoreInside):
    name = "priortr"
    cuts = (3,)
    reads_preceding_layer = True
    options: ClassVar = {
        "rows": "all: attention of all text after the image (LLaVA-1.5); last: of the last prompt token (LLaVA-1.6)"
    }

    def __init__(self, rows: Literal["all", "last"] = "all", **options: Any):
        super().__init__(**options)
        if rows not in ("all", "last"):
            raise CovistError(f"rows={rows!r}: choose 'all' or 'last'")
        self.rows = rows

    def score(self, view: DecoderView) -> Tensor:
        text = text_rows(view)
        rows = text if self.rows == "all" else torch.cat([text[:1], last_prompt_row(view)])
        attention = view.attention(rows).mean(0)[:, view.visual]  # [rows, K]
        prior = shares(attention[0])
        posterior = shares(attention.mean(0) if self.rows == "all" else attention[-1])
        return posterior * torch.log((posterior + SMALLEST) / (prior + SMALLEST))


def shares(attention: Tensor) -> Tensor:
    """Attention to the image [K], normalised to a sum of one."""
    return attention / (attention.sum() + SMALLEST)
