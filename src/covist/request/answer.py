"""Ask a model about pictures, with or without compression, and say what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from covist.api import compress
from covist.engine.decoder import Decoder
from covist.engine.report import Report
from covist.errors import CovistError
from covist.eval.variants import VANILLA, build_method
from covist.families.registry import family_for
from covist.plan import checked_budget
from covist.request.loading import LoadedModel
from covist.request.prompts import chat_prompt
from covist.request.timing import Measurement, measure
from covist.schedule import decoder_flops


@dataclass(frozen=True)
class Answer:
    """What a model said and what saying it cost."""

    method: str
    text: str
    mean_tokens: float  # visual tokens, layer mean, per image
    flops: float  # decoder prefill, Eq. 19
    measurement: Measurement
    report: Report | None = None

    def to_dict(self) -> dict[str, Any]:
        took = self.measurement
        return {
            "method": self.method,
            "answer": self.text,
            "mean_tokens": self.mean_tokens,
            "kv_bytes": took.kv_bytes,
            "flops": self.flops,
            "seconds": {"ttft": took.ttft, "prefill": took.prefill, "generation": took.generation},
            "new_tokens": took.new_tokens,
            "report": None if self.report is None else self.report.to_dict(),
        }


def prepare(loaded: LoadedModel, images: Sequence[Image.Image], prompt: str) -> Mapping[str, Any]:
    """Model inputs for one question about one or more pictures, on the model's device."""
    if not prompt.strip():
        raise CovistError("the prompt is empty")
    if not images:
        raise CovistError("the prompt has no image: there is nothing to compress")
    text = chat_prompt(loaded.processor, prompt, len(images))
    try:
        inputs = loaded.processor(images=list(images), text=text, return_tensors="pt")
    except ValueError as error:  # an extreme shape, for example
        raise CovistError(f"the processor of {loaded.name} refuses the picture: {error}") from error
    return inputs.to(loaded.model.device)


def ask_vanilla(loaded: LoadedModel, inputs: Mapping[str, Any], max_new_tokens: int = 128) -> Answer:
    """The model as it is."""
    took = measure(loaded.model, inputs, max_new_tokens)
    decoder = Decoder(family_for(loaded.model).decoder)
    lengths = [inputs["input_ids"].shape[1]] * decoder.layers
    flops = decoder_flops(lengths, decoder.hidden, decoder.intermediate)
    return Answer(VANILLA, _text(loaded, took), tokens_per_image(loaded, inputs), flops, took)


def ask(
    loaded: LoadedModel, inputs: Mapping[str, Any], method: str, budget: int | str, max_new_tokens: int = 128
) -> Answer:
    """The same with the visual tokens compressed to `budget`."""
    chosen = build_method(method)
    if chosen is None:
        return ask_vanilla(loaded, inputs, max_new_tokens)
    checked_budget(budget, int(tokens_per_image(loaded, inputs)))
    with compress(loaded.model, loaded.processor, budget=budget, method=chosen, clip=loaded.clip) as handle:
        took = measure(loaded.model, inputs, max_new_tokens)
        report = handle.report
    if report is None:
        raise CovistError("the model saw no image in this prompt")
    return Answer(method, _text(loaded, took), report.mean_tokens, report.flops, took, report)


def compare(
    loaded: LoadedModel, inputs: Mapping[str, Any], method: str, budget: int | str, max_new_tokens: int = 128
) -> tuple[Answer, Answer]:
    """Uncompressed and compressed, both timed after a first request that pays for warming up."""
    ask(loaded, inputs, method, budget, max_new_tokens)
    vanilla = ask_vanilla(loaded, inputs, max_new_tokens)
    compressed = ask(loaded, inputs, method, budget, max_new_tokens)
    if compressed.report is not None:  # it tells picture content from markers, which the prompt alone does not
        vanilla = replace(vanilla, mean_tokens=uncompressed_tokens(compressed.report))
    return vanilla, compressed


def tokens_per_image(loaded: LoadedModel, inputs: Mapping[str, Any]) -> float:
    """Mean number of image tokens, markers included, of the pictures in a prompt."""
    mask = family_for(loaded.model).image_mask(inputs["input_ids"], None)
    starts = mask & ~mask.roll(1, dims=1)
    return float(mask.sum() / starts.sum().clamp(min=1))


def uncompressed_tokens(report: Report) -> float:
    """Mean number of content tokens of the pictures, which is what a budget counts."""
    return sum(image.tokens for image in report.images) / len(report.images)


def unknown_words(loaded: LoadedModel, prompt: str) -> list[str]:
    """Words of a prompt that the tokenizer has no token for (a small vocabulary has many)."""
    tokenizer = loaded.processor.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None:
        return []
    words = dict.fromkeys(prompt.split())
    return [word for word in words if unknown in tokenizer(word, add_special_tokens=False).input_ids]


def _text(loaded: LoadedModel, took: Measurement) -> str:
    return loaded.processor.batch_decode(took.output, skip_special_tokens=True)[0].strip()
