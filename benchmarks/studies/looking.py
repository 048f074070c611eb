"""Where the last token of a prompt attends, layer by layer: to what the question is about, or elsewhere.

Methods that choose visual tokens inside the decoder rank them by this attention, each at its own layers. A layer
whose attention misses the objects of the question is a bad place to choose, however good the method is.

    PYTHONPATH=benchmarks:tools python -m studies.looking --suite scenes-hd --keep 87 --limit 4
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from covist.eval.subject import Subject
from covist.eval.suite import SUITES, Item, load_suite
from covist.tiny import Question, Scene
from covist.tiny.hd.scenes import HD_LOOK
from studies.diagnostics import eager_attention, read_attention
from train.tiny.hd.views import NEWLINE, prompt_order, view_owners
from train.tiny.owners import patch_owners


@dataclass(frozen=True)
class Looking:
    """Means in percent over questions about objects in the scene."""

    layer: int
    share: float  # of the last token's attention to the image, on the objects of the question
    found: float  # questions for which the tokens with most attention show every object of the question


def looking_by_layer(suite: str = "scenes-hd", *, keep: int = 87, limit: int = 4, model: Any = None) -> list[Looking]:
    """One entry per decoder layer; `found` is about the `keep` tokens with most attention."""
    asked = load_suite(suite)
    subject = Subject.resolve(asked.model if model is None else model)
    figures = []  # per question [layers, 2]
    with eager_attention(subject):
        for item in asked.items(limit):
            for row, question in enumerate(item.questions):
                if isinstance(question, Question) and question.about:
                    shown = shown_things(question, suite)
                    attention = _last_token_attention(subject, item, row)  # [layers, image tokens]
                    figures.append([_figures(layer, shown, keep) for layer in attention])
    means = 100 * np.mean(figures, axis=0)
    return [Looking(layer, float(share), float(found)) for layer, (share, found) in enumerate(means)]


def shown_things(question: Question, suite: str) -> np.ndarray:
    """The object of the question (from 1) that each token of the image shows; 0: none, NEWLINE: a marker."""
    if suite == "scenes":
        return patch_owners(Scene(0, question.about)).reshape(-1).astype(int)
    order = prompt_order()
    return np.where(order == NEWLINE, NEWLINE, view_owners(Scene(0, question.about, HD_LOOK)).astype(int)[order])


def _figures(attention: np.ndarray, shown: np.ndarray, keep: int) -> tuple[float, bool]:
    """Share of the attention [image tokens] on the question's objects, and whether the best tokens show them all."""
    content = np.where(shown == NEWLINE, 0.0, attention)
    best = np.argsort(-content, kind="stable")[:keep]
    return float(content[shown > 0].sum() / content.sum()), set(shown[shown > 0]) <= set(shown[best])


@torch.inference_mode()
def _last_token_attention(subject: Subject, item: Item, row: int) -> np.ndarray:
    """Attention from the last token of a prompt to the image, mean over heads, [layers, image tokens]."""
    (request,), model = subject.requests(item), subject.model
    ids = request.prompts["input_ids"][row][request.prompts["attention_mask"][row].bool()]
    image = (ids == model.config.image_token_id).nonzero()[:, 0]
    encoded = model.get_image_features(**request.images, return_dict=True)
    with read_attention(subject) as layers:
        model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], mm_encoder_outputs={"image": encoded})
    return np.stack([weights[0, :, -1, image].mean(0).numpy() for _, weights in layers])


def table(looks: list[Looking]) -> str:
    """Markdown: one row per layer."""
    rows = [f"| {look.layer} | {look.share:.1f} | {look.found:.0f} |" for look in looks]
    return "\n".join(["| layer | attention on the question's objects | found |", "| ---: | ---: | ---: |", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="attention of the last prompt token on what a question is about")
    parser.add_argument("--suite", default="scenes-hd", choices=list(SUITES))
    parser.add_argument("--keep", type=int, default=87, help="tokens with most attention that should show all objects")
    parser.add_argument("--limit", type=int, default=4, help="number of images")
    options = parser.parse_args()
    print(table(looking_by_layer(options.suite, keep=options.keep, limit=options.limit)))


if __name__ == "__main__":
    main()
