"""The prompts of a call, as the host knows them, and the images that stand in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import find_packed_sequence_indices

from covist.contract.signals import ImageSignals, KnownPrompt, PlacedSignals
from covist.engine.sequence.host import at_rows
from covist.errors import CovistError

PROBES = 8
"""About how many tokens of an image are compared with those in a prompt."""
UNKNOWN = (
    "the image features in this prompt did not come from this model's vision tower in this call (precomputed features "
    "and chunked prefill cannot be compressed); pass pixel_values to one call"
)


@dataclass(frozen=True)
class PromptBatch:
    """The prompts of a batch. All but the embeddings is on the host."""

    ids: Tensor | None  # [batch, n]
    is_image: Tensor  # [batch, n] bool
    embeddings: Tensor  # [batch, n, d]
    positions: Tensor  # [batch, n] or [batch, n, axes]
    valid: Tensor  # [batch, n] bool
    blocks: Tensor | None = None  # [batch, n] which of the prompts packed into a row a token belongs to, from 0 on

    @property
    def right_padded(self) -> bool:
        """Whether a prompt ends in padding."""
        return bool((self.valid.any(1) & ~self.valid[:, -1]).any())

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


def tokens_given(kwargs: dict[str, Any]) -> int:
    """How many tokens per sample a call of the model brings."""
    tokens: Any = kwargs.get("input_ids") if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
    return int(tokens.shape[1])


def padding_mask(kwargs: dict[str, Any]) -> Tensor | None:
    """The mask of a call, if it is one of tokens."""
    mask = kwargs.get("attention_mask")
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


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
    found: Tensor | None = find_packed_sequence_indices(positions.expand(len(kwargs["inputs_embeds"]), -1))
    return found


# -- which image stands where ------------------------------------------------------------------------------------------


def placed_images(prompt: PromptBatch, signals: Sequence[ImageSignals]) -> list[list[PlacedSignals]]:
    """The images of every prompt, in order; each takes as many visual tokens as it has, even with text between them.

    Images mostly come in prompt order, so this order is tried first, and all of it is checked by one comparison.
    """
    visual = [(row, (prompt.is_image[row] & member).nonzero().squeeze(1)) for row, member in prompt.members()]
    found = _in_order(prompt, signals, visual)
    if found is None:
        found = [_searched(prompt, signals, row, tokens) for row, tokens in visual]
    placed = []
    for images, (_, tokens) in zip(found, visual, strict=True):
        pieces: list[PlacedSignals] = []
        rows = tokens.split([len(image.content) for image in images])
        for image, image_rows in zip(images, rows, strict=True):
            pieces.append(PlacedSignals.after(pieces, image, image_rows))
        placed.append(pieces)
    return placed


def _in_order(
    prompt: PromptBatch, signals: Sequence[ImageSignals], visual: Sequence[tuple[int, Tensor]]
) -> list[list[ImageSignals]] | None:
    """The images if every prompt shows the next ones, beginning anew after the last; else None."""
    waiting, found, here, ours = deque(signals), [], [], []
    for row, tokens in visual:
        images: list[ImageSignals] = []
        place = 0
        while place < len(tokens):
            if not waiting:
                return None
            image = waiting[0]
            waiting.rotate(-1)
            rows = tokens[place : place + len(image.content)]
            if len(rows) < len(image.content):
                return None
            probes = _probes(image)
            here.append(rows[probes] + row * prompt.embeddings.shape[1])
            ours.append(image.span[probes])
            images.append(image)
            place += len(rows)
        found.append(images)
    return found if not here or _same(prompt.embeddings.flatten(0, 1), torch.cat(here), torch.cat(ours)) else None


def _searched(prompt: PromptBatch, signals: Sequence[ImageSignals], row: int, tokens: Tensor) -> list[ImageSignals]:
    """The images of one prompt, each compared with all signals; one that was tried moves to the end."""
    waiting, found, place = deque(signals), [], 0
    while place < len(tokens):
        for _ in range(len(waiting)):
            image = waiting[0]
            waiting.rotate(-1)
            if stands_in(image, prompt.embeddings[row], tokens[place : place + len(image.content)]):
                break
        else:
            raise CovistError(UNKNOWN)
        found.append(image)
        place += len(image.content)
    return found


def stands_in(image: ImageSignals, embeddings: Tensor, rows: Tensor) -> bool:
    """Whether the rows [n] of a prompt [length, d] hold an image's embeddings (a few of them are compared)."""
    if len(rows) != len(image.content):
        return False
    probes = _probes(image)
    return _same(embeddings, rows[probes], image.span[probes])


def _probes(image: ImageSignals) -> slice | Tensor:
    """The tokens of an image that are compared; a slice, because taking it launches nothing.

    Of an image that was encoded in part, they are of its content, which alone tells it apart.
    """
    count = len(image.content) if image.unseen is None else len(image.content_rows)
    some = slice(0, count, max(1, (count - 1) // (PROBES - 1)))
    return some if image.unseen is None else image.content_rows[some]


def _same(embeddings: Tensor, rows: Tensor, expected: Tensor) -> bool:
    """Whether some rows are as expected, even where they are not numbers: a broken image is still the image."""
    found, expected = at_rows(embeddings, rows), expected.to(embeddings)
    return bool(((found == expected) | (found != found)).all())
