"""The model under evaluation: it answers all questions about an image in one batch."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from covist.api import compress
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.eval.suite import Item, Suite
from covist.families.registry import family_for
from covist.families.signals import ImageSignals
from covist.formulas.evidence import mix_heads, visual_evidence
from covist.formulas.ops import mass_norm
from covist.methods.base import Method
from covist.request.loading import LoadedModel, load_model
from covist.request.prompts import chat_prompt

REFERENCE_IMAGES = 32  # images of the suite that set the concentration reference
_PROBED_VALUES = 4096  # values of each parameter that a fingerprint reads
_TEXT_INPUTS = ("input_ids", "attention_mask", "mm_token_type_ids")


@dataclass(frozen=True)
class Prepared:
    """Inputs of one item: prompts [questions, n] padded on the left, its image once, and room for its answers."""

    prompts: dict[str, Tensor]
    image: dict[str, Tensor]
    answer_tokens: int  # of its longest right answer and of the end token


class Subject:
    """A model with its processor and, if there is one, its CLIP; remembers the prepared inputs of every item."""

    def __init__(self, model: nn.Module, processor: Any, clip: Any | None = None):
        self.model: Any = model
        self.processor, self.clip = processor, clip
        self._prepared: dict[int, Prepared] = {}

    @classmethod
    def resolve(cls, model: Any) -> Subject:
        """From a name ("tiny", a folder, a hub id), a `LoadedModel` or a tuple (model, processor[, clip])."""
        if isinstance(model, str):
            model = load_model(model)
        if isinstance(model, LoadedModel):
            return cls(model.model, model.processor, model.clip)
        if isinstance(model, tuple) and len(model) in (2, 3):
            return cls(*model)
        raise CovistError(f"model={type(model).__name__}: give a name or a tuple (model, processor, clip)")

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the weights."""
        checksum = 0
        for name, values in self.model.state_dict().items():
            probe = values.flatten()[:_PROBED_VALUES].float().cpu().numpy()
            checksum = zlib.crc32(name.encode() + probe.tobytes(), checksum)
        return f"{type(self.model).__name__}-{checksum:08x}"

    def prepare(self, item: Item) -> Prepared:
        if item.number not in self._prepared:
            texts = [chat_prompt(self.processor, question.question) for question in item.questions]
            options = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
            every = self.processor(text=texts, images=[item.image] * len(texts), **options).to(self.model.device)
            single = self.processor(text=texts[:1], images=[item.image], **options).to(self.model.device)
            self._prepared[item.number] = Prepared(
                prompts={name: values for name, values in every.items() if name != "pixel_values"},
                image={name: values for name, values in single.items() if name not in _TEXT_INPUTS},
                answer_tokens=self._answer_tokens(item),
            )
        return self._prepared[item.number]

    @torch.inference_mode()
    def answer(self, item: Item) -> list[str]:
        """Greedy answers to every question about an item.

        The image is encoded once: its features stand in every prompt of the batch.
        """
        prepared = self.prepare(item)
        encoded = self.model.get_image_features(**prepared.image, return_dict=True)
        encoded.pooler_output = list(encoded.pooler_output) * len(item.questions)
        output = self.model.generate(
            **prepared.prompts,
            mm_encoder_outputs={"image": encoded},
            max_new_tokens=prepared.answer_tokens,
            do_sample=False,
        )
        written = output[:, prepared.prompts["input_ids"].shape[1] :]
        return self.processor.batch_decode(written, skip_special_tokens=True)

    def compressed(
        self, method: Method | None, budget: int | float | str, concentration: float | None
    ) -> AbstractContextManager[Any]:
        """The model under a method, its running reference frozen to `concentration`; None leaves the model as it is."""
        if method is None:
            return nullcontext()
        if hasattr(method, "tracker"):
            method.tracker.freeze(concentration)
        return compress(self.model, self.processor, budget=budget, method=method, clip=self.clip)

    def tokens(self, item: Item) -> int:
        """Visual tokens of an item without compression, markers included."""
        return int((self.prepare(item).prompts["input_ids"][0] == self.model.config.image_token_id).sum())

    @torch.inference_mode()
    def concentration(self, suite: Suite) -> float:
        """Mean concentration of the encoder attention over the first images of a suite.

        CoViST's running reference is frozen to it, so that an answer does not depend on the images before.
        """
        captured: list[ImageSignals] = []
        hooks = family_for(self.model).capture(captured.extend)
        try:
            for item in suite.items(REFERENCE_IMAGES):
                self.model.get_image_features(**self.prepare(item).image, return_dict=True)
        finally:
            for hook in hooks:
                hook.remove()
        return sum(map(_concentration, captured)) / len(captured)

    def _answer_tokens(self, item: Item) -> int:
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        answers = [question.answer for question in item.questions]
        return max(map(len, tokenizer(answers, add_special_tokens=False).input_ids)) + 1


def _concentration(signals: ImageSignals) -> float:
    attention = mass_norm(signals.packed(mix_heads(signals.attention)))
    return visual_evidence(attention, signals.keys, signals.embeddings, signals.grid, CovistConfig()).concentration
