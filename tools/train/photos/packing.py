"""All captions of an image packed after one visual prefix, as `train.tiny.packing` packs questions.

    <s> USER: [patches] describe the photo | ASSISTANT: caption 1 | ASSISTANT: caption 2 | ...

Every caption sees the prefix and itself, so the packed pass equals separate passes at a fraction of their cost.
"""

from itertools import chain

import torch
from transformers import PreTrainedTokenizerFast

from covist.eval.photos.data import PROMPT, Photo
from train.tiny.packing import IGNORED, Packed


class CaptionPacker:
    """Packs captions; `before` are the ids before the patches, `after` those between the patches and the blocks."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, image_tokens: int):
        self.tokenizer, self.image_tokens = tokenizer, image_tokens
        self.before = tokenizer("USER:").input_ids
        *self.after, self.turn = tokenizer(f"{PROMPT} ASSISTANT:", add_special_tokens=False).input_ids

    def __call__(self, photos: list[Photo]) -> Packed:
        rows = [self._row(photo) for photo in photos]
        longest = max(len(row[0]) for row in rows)
        fillers = (self.tokenizer.pad_token_id, 0, -1, IGNORED)
        padded = (
            torch.tensor([row[part] + [filler] * (longest - len(row[part])) for row in rows])
            for part, filler in enumerate(fillers)
        )
        return Packed(*padded)

    def _row(self, photo: Photo) -> tuple[list[int], list[int], list[int], list[int]]:
        """Ids, positions, blocks and labels; unknown words are read but not predicted."""
        begin = len(self.before) + self.image_tokens + len(self.after)
        end, unknown = self.tokenizer.eos_token_id, self.tokenizer.unk_token_id
        written = self.tokenizer(list(photo.captions), add_special_tokens=False).input_ids
        blocks = [[self.turn, *caption] for caption in written]
        labels = [[*(IGNORED if word == unknown else word for word in caption), end] for caption in written]
        return (
            list(chain.from_iterable(blocks)),
            [position for block in blocks for position in range(begin, begin + len(block))],
            [number for number, block in enumerate(blocks) for _ in block],
            list(chain.from_iterable(labels)),
        )
