"""In which layers a decoder reads the image: its accuracy if the text cannot see the image from some layer on.

The uncompressed model answers a suite repeatedly. Each time, the attention from text to image is removed in one more
layer, counted from the last. The first layer from which that costs nothing is where the image has been read; a method
that keeps few tokens in earlier layers removes what the decoder still has to read.

    PYTHONPATH=benchmarks python -m studies.reading --suite scenes-hd --limit 12
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covist.eval.records import ItemAnswers
from covist.eval.statistics import Interval, accuracy, retention
from covist.eval.subject import Subject
from covist.eval.suite import SUITES, load_suite
from covist.eval.tally import tally
from covist.families.registry import family_for


@dataclass(frozen=True)
class Reading:
    """Accuracy and retention in percent, if the text sees the image only in the first `layers`."""

    layers: int
    accuracy: float
    retention: float
    interval: Interval  # of the retention, 95%


def reading_by_layer(suite: str = "scenes", *, limit: int = 8, model: Any = None, seed: int = 0) -> list[Reading]:
    """One entry per number of layers in which the text sees the image, from all of them down to none."""
    asked = load_suite(suite)
    items, subject = asked.items(limit), Subject.resolve(asked.model if model is None else model)
    decoder: Any = family_for(subject.model).decoder
    tallies = {}
    for layers in range(len(decoder.layers), -1, -1):
        answered = {}
        for item in items:
            image = subject.requests(item)[0].prompts["input_ids"] == subject.model.config.image_token_id
            with image_hidden(decoder.layers[layers:], image):
                answered[item.number] = ItemAnswers(item.number, subject.answer(item).texts, 0.0, 0.0)
        tallies[layers] = tally(items, answered, asked.families)
    whole = tallies[len(decoder.layers)]
    return [Reading(layers, accuracy(own, seed).value, *retention(own, whole, seed)) for layers, own in tallies.items()]


@contextmanager
def image_hidden(layers: Any, image: Tensor) -> Iterator[None]:
    """Hide the image from the text in some decoder layers; `image` [rows, prompt] marks its tokens."""

    def mask(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        queries, cache = args[0].shape[1], kwargs.get("past_key_values")
        # this layer has not stored its keys yet, so its cache ends before the queries
        known = cache.get_seq_length(module.self_attn.layer_idx) if cache is not None else 0
        return args, {**kwargs, "attention_mask": _without(image, kwargs["attention_mask"], queries, known + queries)}

    hooks = [layer.register_forward_pre_hook(mask, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _without(image: Tensor, mask: Tensor | None, queries: int, keys: int) -> Tensor:
    """An attention mask [rows, 1, queries, keys] that hides the image from the text; the image still sees itself."""
    shown = torch.nn.functional.pad(image, (0, keys - image.shape[1]))  # [rows, keys], generated tokens are text
    hidden = (~shown[:, -queries:, None] & shown[:, None, :])[:, None]
    if mask is None:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=image.device).tril(keys - queries)
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)


def table(readings: list[Reading]) -> str:
    """Markdown: one row per number of layers."""
    lines = ["| layers that see the image | accuracy | retention |", "| ---: | ---: | ---: |"]
    for one in readings:
        low, high = one.interval
        lines.append(f"| {one.layers} | {one.accuracy:.1f} | {one.retention:.1f} [{low:.1f}, {high:.1f}] |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy if the text sees the image only in the first layers")
    parser.add_argument("--suite", default="scenes", choices=list(SUITES))
    parser.add_argument("--limit", type=int, default=8, help="number of images")
    options = parser.parse_args()
    print(table(reading_by_layer(options.suite, limit=options.limit)))


if __name__ == "__main__":
    main()
