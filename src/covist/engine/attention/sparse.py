"""Layers that choose some of their keys with an indexer before they attend.

An indexer reads the mask, so such a layer is given one as a tensor of the keys that it holds, without any bias: it
chooses among the keys that are left as it would among all keys. Under a name of an attention function that it does not
know, the layer leaves it to that function to hide the other keys, and hands over its choice as an option.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

EARLIER = "prev_topk_indices"
"""The argument of a layer that holds what an earlier layer has chosen."""
CHOICES = ("indices", "block_indices")
"""Options of an attention function: chosen keys [batch, queries, count], or blocks of keys for each group of heads."""


@dataclass(frozen=True)
class Indexer:
    """What is known of the indexer of a layer."""

    is_own: bool  # if not, the layer attends to all keys, or to those that an earlier layer has chosen
    counts_columns: bool  # whether it takes the positions of queries for the numbers of their keys

    @classmethod
    def of(cls, layer: nn.Module) -> Indexer | None:
        """None: layers of its kind have none."""
        for part in layer.modules():
            if hasattr(part, "indexer"):
                return cls(part.indexer is not None, hasattr(part.indexer, "build_block_mask"))
        return None


def of_chosen_keys(mask: Any, module: Any, query: Tensor, key: Tensor, options: dict[str, Any]) -> Any:
    """The mask of a layer without the keys that it has not chosen."""
    indices, blocks = (options.get(name) for name in CHOICES)
    count = key.shape[2]
    if blocks is not None:
        return module.indexer.build_block_mask(blocks, mask, count, query.dtype, query.device, options["position_ids"])
    if indices is None:
        return mask
    places = torch.where(indices >= 0, indices, count).long()  # a place after the last key for what is no choice
    chosen = torch.zeros(*places.shape[:2], count + 1, dtype=torch.bool, device=places.device)
    return mask & chosen.scatter_(-1, places, True)[:, None, :, :count]
