"""All that is learned about an image packed after one visual prefix, as `train.tiny.packing` packs questions.

    <s> USER: [patches] | describe the photo ASSISTANT: caption 1 | question 1 ASSISTANT: answer 1 | ...

Every block sees the prefix and itself, so the packed pass equals separate passes at a fraction of their cost.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from covist.eval.photos.data import PROMPT
from train.photos.lessons import Lesson
from train.tiny.packing import IGNORED, Packed


@dataclass(frozen=True)
class PackedLessons(Packed):
    """The text of a batch; captions and answers are told apart because they are weighted apart."""

    is_answer: Tensor  # [n, s] bool, whether the next token belongs to the answer of a question


class LessonPacker:
    """Packs lessons; `before` are the ids before the patches."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, image_tokens: int):
        self.tokenizer, self.image_tokens = tokenizer, image_tokens
        self.before = tokenizer("USER:").input_ids

    def __call__(self, lessons: list[Lesson]) -> PackedLessons:
        rows = [self._row(lesson) for lesson in lessons]
        longest = max(len(row["ids"]) for row in rows)
        fillers = {
            "ids": self.tokenizer.pad_token_id, "positions": 0, "blocks": -1, "labels": IGNORED, "is_answer": False,
        }  # fmt: skip
        return PackedLessons(
            **{
                name: torch.tensor([row[name] + [filler] * (longest - len(row[name])) for row in rows])
                for name, filler in fillers.items()
            }
        )

    def _row(self, lesson: Lesson) -> dict[str, list]:
        """What a row of the batch holds, by field; unknown words are read but not predicted."""
        begin = len(self.before) + self.image_tokens
        end, unknown = self.tokenizer.eos_token_id, self.tokenizer.unk_token_id
        texts = [
            *((PROMPT, caption, False) for caption in lesson.captions),
            *((*one, True) for one in lesson.questions),
        ]
        row: dict[str, list] = {field.name: [] for field in fields(PackedLessons)}
        for block, (asked, said, is_answer) in enumerate(texts):
            given, answer = self.tokenizer([f"{asked} ASSISTANT:", said], add_special_tokens=False).input_ids
            length = len(given) + len(answer)
            row["ids"] += given + answer
            row["positions"] += range(begin, begin + length)
            row["blocks"] += [block] * length
            row["labels"] += [IGNORED] * (len(given) - 1)
            row["labels"] += [*(IGNORED if word == unknown else word for word in answer), end]
            row["is_answer"] += [is_answer] * length
        return row
