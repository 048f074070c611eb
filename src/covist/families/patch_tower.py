"""Vision towers without a class token whose layers have separate query and key projections."""

from __future__ import annotations

from typing import Any

from covist.families.patch_attention import PatchAttention, ProjectionTap
from covist.families.projected import ProjectedTowerFamily

PatchRecords = list[PatchAttention]
"""Queries and keys of an encoder layer, for each entry of the tower's batch."""


class PatchTowerFamily(ProjectedTowerFamily[PatchRecords]):
    """A family with such a tower: the evidence is the incoming attention of the last layer in use."""

    needs_clip_text = False
    encoder_signal = "incoming attention of the layer that feeds the projector"

    def tap(self, layer: Any) -> ProjectionTap:
        attention = getattr(layer, self.attention_name)
        return ProjectionTap(attention, attention.num_heads)
