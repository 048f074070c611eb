"""Many questions packed after one visual prefix, which saves most of the cost of training the decoder.

    <s> USER: [patches] | question 1, answer 1 | question 2, answer 2 | ...

Every question sees the prefix and itself, and has the positions that it would have alone. So the packed pass equals
separate passes at a small part of their cost.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedTokenizerFast

from covist.tiny.questions import Question
from covist.tiny.scenes import GRID
from covist.tiny.text import END, PAD, START, TOKEN_ID, build_tokenizer

PATCHES = GRID * GRID
PREFIX = (START, "USER:")
IGNORED = -100
PACKED_ATTENTION = "tiny_packed"
_TOKENIZER = build_tokenizer()


@dataclass(frozen=True)
class Packed:
    """The text of a batch after its visual prefixes; n images, s text tokens."""

    ids: Tensor  # [n, s]
    positions: Tensor  # [n, s]
    blocks: Tensor  # [n, s], which question a token belongs to; -1 is padding
    labels: Tensor  # [n, s], the next token if it belongs to an answer, IGNORED elsewhere

    @property
    def answered(self) -> Tensor:
        """Where the words of answers are predicted, [n, s] bool; one place per word, in order."""
        return (self.labels != IGNORED) & (self.labels != TOKEN_ID[END])

    def mask(self, prefix: int) -> Tensor:
        """Which keys every text token sees, [n, 1, s, prefix + s]."""
        n, s = self.ids.shape
        own = (self.blocks[:, :, None] == self.blocks[:, None]) & torch.ones(s, s, dtype=torch.bool).tril()
        return torch.cat([torch.ones(n, s, prefix, dtype=torch.bool), own], dim=2)[:, None]


def pack(
    questions: list[list[Question]], image_tokens: int = PATCHES, tokenizer: PreTrainedTokenizerFast = _TOKENIZER
) -> Packed:
    """Pack the questions about each image; a tokenizer of another vocabulary shares the special tokens of the first."""
    rows, begin = [], len(PREFIX) + image_tokens
    for asked in questions:
        ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        labels: list[int] = []
        for block, item in enumerate(asked):
            text = tokenizer(f"{item.question} ASSISTANT:", add_special_tokens=False).input_ids
            answer = tokenizer(item.answer, add_special_tokens=False).input_ids
            ids += text + answer
            labels += [IGNORED] * (len(text) - 1) + answer + [TOKEN_ID[END]]
            positions += range(begin, begin + len(text) + len(answer))
            blocks += [block] * (len(text) + len(answer))
        rows.append((ids, positions, blocks, labels))
    longest = max(len(row[0]) for row in rows)
    fillers = (TOKEN_ID[PAD], 0, -1, IGNORED)
    padded = (
        torch.tensor([row[part] + [filler] * (longest - len(row[part])) for row in rows])
        for part, filler in enumerate(fillers)
    )
    return Packed(*padded)


def packed_attention(module, query, key, value, attention_mask, scaling, **kwargs):  # type: ignore[no-untyped-def]
    """Causal attention inside the prefix, masked attention for the text rows that `attention_mask` describes."""
    prefix = query.shape[2] - attention_mask.shape[2]
    head, tail = query[:, :, :prefix], query[:, :, prefix:]
    first = F.scaled_dot_product_attention(
        head, key[:, :, :prefix], value[:, :, :prefix], is_causal=True, scale=scaling
    )
    second = F.scaled_dot_product_attention(tail, key, value, attn_mask=attention_mask, scale=scaling)
    return torch.cat([first, second], dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
