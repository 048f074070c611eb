"""covist beside what a user would write instead, and beside the limit of both, in one run.

    python benchmarks/side_by_side.py [--scale 0.5] [--budget 128] [--repetitions 5]

A random Qwen2.5-VL answers the same prompt in turns: through covist, through a patch that selects in DivPrune's style
and cuts the embeddings, and as a plain decoder that is given the vision tower's output for as many tokens as are kept.
The last one is the limit: it chooses nothing. A prefill includes the vision tower. Peaks are what the allocator held
beyond the weights. Exits with 1 if covist takes more than 1.05 times the limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from common import interleaved
from launches import row
from state_building import peak_bytes
from torch import Tensor
from transformers import DynamicCache

import covist
from covist.bench.random_models import RandomModel, build_random
from covist.bench.recipes import recipe_for

GEOMETRY, TEXT, STEPS, LIMIT = "qwen2.5-vl-3b", 62, 8, 1.05
METHODS = ("divprune", "visionzip", "covist-max")
MIB = 2**20


@dataclass
class Filled:
    """A cache after a prefill, and the positions of what comes next, if the caller has to say them."""

    cache: Any
    next: Tensor | None = None  # [axes, 1, 1]


def div_prune(features: Tensor, count: int) -> Tensor:
    """The tokens farthest from those chosen before, by cosine distance: one matrix and a loop, as it is published."""
    unit = torch.nn.functional.normalize(features, dim=-1)
    distances = 1 - unit @ unit.T
    chosen = torch.empty(count, dtype=torch.long)
    chosen[0] = distances.topk(2, largest=False).values[:, 1].argmax()
    nearest = distances[chosen[0]].clone()
    for place in range(1, count):
        chosen[place] = nearest.argmax()
        nearest = torch.minimum(nearest, distances[chosen[place]])
    return chosen.sort().values


def build(scale: float) -> RandomModel:
    """A model with few layers in its vision tower, which would otherwise hide the rest."""
    return build_random(GEOMETRY, scale, vision=recipe_for(GEOMETRY)[1].shallow)


class Patched:
    """A model whose embeddings are cut after the vision tower; no weights, no bias."""

    def __init__(self, random: RandomModel, budget: int, select: Callable[[Tensor, int], Tensor]):
        self._model, self._inputs, self._budget, self._select = random.model, random.request(0, TEXT), budget, select

    def prefill(self) -> Filled:
        model, given = self._model, self._inputs
        encoded = model.model.get_image_features(given["pixel_values"], given["image_grid_thw"]).pooler_output
        features, ids = torch.cat(tuple(encoded)), given["input_ids"]
        embeddings, is_image = model.get_input_embeddings()(ids), ids[0] == model.config.image_token_id
        embeddings[0, is_image] = features
        positions, _ = model.model.get_rope_index(ids, given["mm_token_type_ids"], given["image_grid_thw"])
        rows = is_image.nonzero()[:, 0]
        left = torch.cat([(~is_image).nonzero()[:, 0], rows[self._select(features, self._budget)]]).sort().values
        cache = DynamicCache(config=model.config.get_text_config())
        model(
            inputs_embeds=embeddings[:, left],
            position_ids=positions[..., left],
            past_key_values=cache,
            logits_to_keep=1,
        )
        return Filled(cache, positions.max() + 1 + torch.zeros(3, 1, 1, dtype=torch.long))


class Compressed:
    """A model under covist, with the weights of another."""

    def __init__(self, random: RandomModel, scale: float, budget: int):
        twin = build(scale)
        twin.model.load_state_dict(random.model.state_dict(), assign=True)
        self.model, self._inputs = twin.model, random.request(0, TEXT)
        self._handle = covist.compress(self.model, twin.tokenizer, method=METHODS[0], budget=budget, per_call=True)

    def under(self, method: str, run: Callable[..., Any], *arguments: Any) -> Any:
        with self._handle.using(method=method):
            return run(*arguments)

    def prefill(self) -> Filled:
        cache = DynamicCache(config=self.model.config.get_text_config())
        self.model(**self._inputs, past_key_values=cache, logits_to_keep=1)
        return Filled(cache)


def decode(model: Any, filled: Filled) -> None:
    """A few steps after a prefill, whose keys stay as they were."""
    token = torch.tensor([[7]])
    for step in range(STEPS):
        placed = {} if filled.next is None else {"position_ids": filled.next + step}
        model(input_ids=token, past_key_values=filled.cache, **placed)
    filled.cache.crop(-STEPS)


def evenly(features: Tensor, count: int) -> Tensor:
    """Tokens at even distances, which cost nothing to choose."""
    return torch.linspace(0, len(features) - 1, count).long()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.5, help="of the widths of Qwen2.5-VL-3B")
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    random, budget = build(options.scale), options.budget
    limit, rival = Patched(random, budget, evenly), Patched(random, budget, div_prune)
    ours = Compressed(random, options.scale, budget)
    prefills: dict[str, Callable[[], Filled]] = {
        "the limit": limit.prefill,
        "a patch in DivPrune's style": rival.prefill,
        **{f"covist, {method}": partial(ours.under, method, ours.prefill) for method in METHODS},
    }
    with torch.inference_mode():
        filled = {name: prefill() for name, prefill in prefills.items()}
    steps = {name: partial(decode, random.model, filled[name]) for name in list(prefills)[:2]}
    for method in METHODS:
        steps[f"covist, {method}"] = partial(ours.under, method, decode, ours.model, filled[f"covist, {method}"])
    seconds, of_steps = (interleaved(variants, options.repetitions) for variants in (prefills, steps))
    report(random, budget, prefills, seconds, of_steps)
    worst = max(
        found[name] / found["the limit"] for found in (seconds, of_steps) for name in found if name.startswith("covist")
    )
    print(f"\nAt most {LIMIT} of the limit: {'reached' if worst <= LIMIT else f'MISSED, {worst:.2f}'}")
    return 0 if worst <= LIMIT else 1


def report(
    random: RandomModel,
    budget: int,
    prefills: dict[str, Callable[[], Filled]],
    seconds: dict[str, float],
    of_steps: dict[str, float],
) -> None:
    """A row for every variant."""
    size = sum(weight.numel() for weight in random.model.model.language_model.parameters())
    print(f"Qwen2.5-VL, decoder of {size / 1e9:.2f}B parameters, {budget} visual tokens left\n")
    row(["", "prefill", "of the limit", "step", "of the limit", "peak MiB"])
    row(["---"] * 6)
    for name, prefill in prefills.items():
        with torch.inference_mode():
            peak = peak_bytes(prefill)
        ratios = (f"{found[name] / found['the limit']:.2f}" for found in (seconds, of_steps))
        times = f"{seconds[name]:.3f} s", f"{of_steps[name] / STEPS:.4f} s"
        cells = [cell for pair in zip(times, ratios, strict=True) for cell in pair]
        row([name, *cells, f"{peak / MIB:.0f}"])


if __name__ == "__main__":
    sys.exit(main())
