"""The model's own mask as a rule over tokens, to be evaluated at the tokens that are left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from covist.errors import CovistError

Visible = Callable[..., Any]
"""(batch, head, query row, key row) -> bool. Arguments broadcast; rows count the tokens that the model was given."""


@dataclass(frozen=True, eq=False)
class MaskRule:
    """What stands in for a mask while a call is compressed. It has no size until it is evaluated.

    transformers builds every mask from a function of token indices. Sliding windows, chunks, bidirectional images,
    prefixes and packing are such functions, so what a kept token sees is what it would have seen, minus what was
    removed.
    """

    visible: Visible = causal_mask_function
    mask: Tensor | None = None  # [batch, heads or 1, queries, keys] bool, if a layer has made one of the keys it holds

    ndim, shape = 4, torch.Size((0, 0, 0, 0))
    """Of a mask that is already prepared: a model that builds masks twice must not take it for a 2-D one."""

    def __getitem__(self, part: object) -> None:
        raise CovistError(
            "this text model lets later layers see only some tokens of a prompt (Gemma 4 in transformers 5.23), which "
            "compression does not support; use transformers 5.22"
        )

    @classmethod
    def of_mask(cls, mask: Tensor | None) -> MaskRule:
        """For a layer that was given no rule: no mask, or one that it has made itself, of the keys that it holds."""
        return cls() if mask is None else cls(mask=mask if mask.dtype == torch.bool else mask == 0)

    @property
    def is_causal(self) -> bool:
        """Whether a token sees all tokens before it."""
        return self.visible is causal_mask_function and self.mask is None

    def at(self, samples: Tensor, queries: Tensor, keys: Tensor, part: slice) -> Tensor:
        """[batch, heads or 1, queries, keys] bool, for rows [batch, queries] and [batch, keys] of prompts `samples`.

        The queries are this `part` of those of the call.
        """
        if self.mask is not None:
            return self.mask[:, :, part].to(queries.device)
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=queries.device)
        seen = self.visible(samples[:, None, None, None], head, queries[:, None, :, None], keys[:, None, None])
        shape = (len(queries), 1, queries.shape[1], keys.shape[1])
        return torch.as_tensor(seen, device=queries.device).expand(shape)
