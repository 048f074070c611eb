"""Vision towers without a class token whose layers have separate projections: what their patches look at."""

from __future__ import annotations

from typing import Any

from covist.families.patch_attention import PatchAttention, ProjectionTap
from covist.families.projected import ProjectedTowerFamily

PatchesSeen = list[PatchAttention]
"""What an encoder layer's attention read, for each entry of the tower's batch."""


class PatchTowerFamily(ProjectedTowerFamily[PatchesSeen]):
    """A family with such a tower: the evidence is the attention that comes in at the last layer in use."""

    needs_clip_text = False
    encoder_signal = "incoming attention of the layer that feeds the projector"

    def tap(self, layer: Any) -> ProjectionTap:
        attention = getattr(layer, self.attention_name)
        return ProjectionTap(attention, attention.num_heads)
