"""What a model was given in a call, before the decoder sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import find_packed_sequence_indices

from covist.contract.signals import ImageSignals, KnownPrompt
from covist.engine.sequence.ledger import Ledger


@dataclass(frozen=True)
class Prompt:
    """The prompts of a batch."""

    ids: Tensor | None  # [batch, n]
    is_image: Tensor  # [batch, n] bool
    embeddings: Tensor  # [batch, n, d]
    positions: Tensor  # [batch, n] or [batch, n, axes]
    valid: Tensor  # [batch, n] bool
    blocks: Tensor | None = None  # [batch, n] which of the prompts packed into a row a token belongs to, from 0 on

    def generated(self, row: int, image: ImageSignals) -> int:
        """How many of a row's last tokens were generated; a call without a cache sees them as part of the prompt.

        Encoded images remember the prompts that they came with. A prompt that is one token longer than when it was last
        seen continues it; any other is a new prompt about the same images, even if it begins with a known one.
        """
        tokens = self.embeddings[row] if self.ids is None else self.ids[row]
        for known in image.prompts:
            first = known.tokens
            if len(tokens) - known.seen in (0, 1) and torch.equal(first.to(tokens.device), tokens[: len(first)]):
                known.seen = len(tokens)
                return len(tokens) - len(first)
        image.prompts.append(KnownPrompt(tokens.clone(), len(tokens)))
        return 0

    def members(self) -> list[tuple[int, Tensor]]:
        """(row, its tokens [n] bool) of every prompt."""
        if self.blocks is None:
            return [(row, torch.ones_like(valid)) for row, valid in enumerate(self.valid)]
        return [(row, block == number) for row, block in enumerate(self.blocks) for number in range(int(block[-1]) + 1)]


def packed_prompts(kwargs: dict[str, Any]) -> Tensor | None:
    """The prompt of its row to which each token belongs [batch, n], if several are packed into a row.

    Like transformers, this looks for restarting positions only without a mask and without a cache. Multidimensional
    positions are judged by the text positions before the axes, and ignored without them.
    """
    positions = kwargs.get("position_ids")
    if positions is None or kwargs.get("attention_mask") is not None or kwargs.get("past_key_values") is not None:
        return None
    if positions.ndim == 3:
        if len(positions) != 4:
            return None
        positions = positions[0]
    embeddings = kwargs["inputs_embeds"]
    blocks = find_packed_sequence_indices(positions.expand(len(embeddings), -1))
    return None if blocks is None else blocks.to(embeddings.device)


def text_ledger(length: int, prompt: Prompt, mask: Tensor | None) -> Ledger | None:
    """The ledger of a cache that was filled without compression: `length` text tokens before the prompt."""
    if length == 0:
        return None
    batch, device = len(prompt.embeddings), prompt.positions.device
    valid = torch.ones(batch, length, dtype=torch.bool, device=device)
    if mask is not None:
        valid = mask[:, :length].to(device) != 0
    positions = (valid.cumsum(1) - 1).clamp(min=0)
    if prompt.positions.ndim == 3:
        positions = positions[..., None].expand(-1, -1, prompt.positions.shape[-1])
    return Ledger.of_text(positions, valid)
