"""How much a method changes the decoder's attention output, the quantity that Proposition 1 bounds.

For text tokens after the image, every layer's attention output per head is compared with that of the uncompressed
model on the same prompt. In layer 0, queries, text keys and text values are the same in both, as the proposition
assumes; deeper layers also show the accumulated error of earlier layers. The attention mass on the image shows the
direction of an error: below the uncompressed mass the image has too little influence, above it too much.

    PYTHONPATH=benchmarks python -m studies.diagnostics --methods covist-fixed,covist-fixed:attention=off --limit 8
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covist.api.setup import Setup
from covist.budget import Budget, Written
from covist.eval.runner import method_names
from covist.eval.subject import Subject
from covist.eval.suite import Item, load_suite
from covist.families.registry import family_for
from covist.methods.grammar import VANILLA
from covist.request.answer import compressed


@dataclass(frozen=True)
class AttentionGap:
    """Means over prompts, text tokens after the image, and heads; one entry per decoder layer."""

    method: str
    error: list[float]  # |y - y'| / |y| of the attention output
    mass: list[float]  # attention on the image, between 0 and 1


@dataclass(frozen=True)
class _Observation:
    """One prompt: outputs [layers, heads, text, head width] and mass on the image [layers, heads, text]."""

    outputs: Tensor
    mass: Tensor


def attention_gaps(
    methods: str | Iterable[str],
    budget: Budget | Written = 64,
    *,
    suite: str = "scenes",
    limit: int = 8,
    model: Any = "tiny",
) -> list[AttentionGap]:
    """Compare methods with the uncompressed model on the first `limit` images; the first entry is vanilla."""
    asked, subject = load_suite(suite), Subject.resolve(model)
    items = asked.items(limit)
    names = [VANILLA, *(name for name in method_names(methods) if name != VANILLA)]
    concentration = subject.concentration(asked)
    gaps: list[AttentionGap] = []
    reference: list[_Observation] = []
    with eager_attention(subject):
        for name in names:
            with compressed(subject.loaded, Setup(name, budget, concentration)):
                seen = [_observe(subject, item, row) for item in items for row in range(len(item.questions))]
            reference = reference or seen
            gaps.append(_gap(name, seen, reference))
    return gaps


def _gap(name: str, seen: list[_Observation], reference: list[_Observation]) -> AttentionGap:
    errors = [
        ((own.outputs - full.outputs).norm(dim=-1) / full.outputs.norm(dim=-1)).mean((1, 2))  # [layers]
        for own, full in zip(seen, reference, strict=True)
    ]
    masses = [own.mass.mean((1, 2)) for own in seen]
    return AttentionGap(name, torch.stack(errors).mean(0).tolist(), torch.stack(masses).mean(0).tolist())


@torch.inference_mode()
def _observe(subject: Subject, item: Item, row: int) -> _Observation:
    """Run one prompt and read every layer's attention for the text after the image."""
    (request, *_), model = subject.requests(item), subject.model
    valid = request.prompts["attention_mask"][row].bool()
    ids = request.prompts["input_ids"][row][valid]
    image = (ids == model.config.image_token_id).nonzero()[:, 0]
    before, after = int(image[0]), len(ids) - int(image[-1]) - 1
    encoded = model.get_image_features(**request.images, return_dict=True)
    with read_attention(subject) as layers:
        model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], mm_encoder_outputs={"image": encoded})
    outputs = [heads[0, -after:].transpose(0, 1) for heads, _ in layers]
    masses = [weights[0, :, -after:, before : weights.shape[-1] - after].sum(-1) for _, weights in layers]
    return _Observation(torch.stack(outputs), torch.stack(masses))


@contextmanager
def read_attention(subject: Subject) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Per layer the input of the output projection, [1, n, heads, head width], and the weights [1, heads, n, n]."""
    found: list[tuple[Tensor, Tensor]] = []
    inputs: list[Tensor] = []
    hooks = []
    decoder: Any = family_for(subject.model).decoder
    for layer in decoder.layers:
        attention = layer.self_attn
        hooks += [
            attention.o_proj.register_forward_pre_hook(lambda module, args: inputs.append(args[0])),
            attention.register_forward_hook(
                lambda module, args, output: found.append(
                    (inputs.pop().unflatten(-1, (-1, module.head_dim)), output[1])
                )
            ),
        ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def eager_attention(subject: Subject) -> Iterator[None]:
    """Switch to the eager backend, the only one that returns attention weights."""
    decoder: Any = family_for(subject.model).decoder
    former = decoder.config._attn_implementation
    subject.model.set_attn_implementation({"text_config": "eager"})
    try:
        yield
    finally:
        subject.model.set_attn_implementation({"text_config": former})


def table(gaps: list[AttentionGap]) -> str:
    """Markdown: one row per method, one column per layer with "error (mass)"."""
    head = ["method", *(f"layer {layer}" for layer in range(len(gaps[0].error)))]
    rows = [
        [gap.method, *(f"{error:.3f} ({mass:.3f})" for error, mass in zip(gap.error, gap.mass, strict=True))]
        for gap in gaps
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="attention output error and attention mass on the image, per layer")
    parser.add_argument("--methods", default="covist-fixed,covist-fixed:attention=off")
    parser.add_argument("--budget", default="64")
    parser.add_argument("--limit", type=int, default=8, help="number of images")
    options = parser.parse_args()
    print(table(attention_gaps(options.methods, options.budget, limit=options.limit)))


if __name__ == "__main__":
    main()
