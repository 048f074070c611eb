"""What compression adds to a prefill, counted in operators and host reads, so that it is the same on any machine.

    python benchmarks/prefill_launches.py [--quick]

A prefill launches the same operators for any length, so what a compressed one adds is its difference from the plain one
of the same prompt: vision tower, projector and decoder are in both. Models of two depths give the difference per layer
and the rest. Everything runs on the accelerator's code path, in narrow models with random weights. Exits with 1 if a
limit is missed.
"""

import argparse
import sys
import warnings
from dataclasses import dataclass

import torch
from launches import Counter, counted, path, row

import covist
from covist.bench.random_models import RandomModel, build_random
from covist.bench.recipes import recipe_for

SCALE, TEXT, DEPTHS = 0.04, 20, (8, 16)
METHODS = ("covist-max", "covist-fixed", "covist-pro")
MOST_OPERATORS, MOST_READS, MOST_OF_A_BATCH = 120, 2, 1.5


@dataclass(frozen=True)
class Prompt:
    """A prompt of a published geometry, or several of them in a batch."""

    name: str
    geometry: str
    budget: int
    batch: int = 1

    def inputs(self, random: RandomModel) -> dict[str, torch.Tensor]:
        return {name: torch.cat([value] * self.batch) for name, value in random.request(0, TEXT).items()}


PROMPTS = (
    Prompt("576 / 64", "llava-1.5-7b", 64),
    Prompt("8 x 576 / 64", "llava-1.5-7b", 64, batch=8),
    Prompt("2880 / 160", "llava-next-7b", 160),
    Prompt("16 frames, 4096 / 128", "qwen3-vl-8b-video", 128),
)


@dataclass(frozen=True)
class Added:
    """Operators once per prefill and per layer, and host reads."""

    once: float
    per_layer: float
    reads: float


def added(prompt: Prompt, method: str) -> Added:
    """What `method` adds to the prefill of a prompt."""
    found: list[tuple[Counter, Counter]] = []
    for depth in DEPTHS:
        shallow = recipe_for(prompt.geometry)[1].shallow
        random = build_random(prompt.geometry, SCALE, decoder={"num_hidden_layers": depth}, vision=shallow)
        inputs = prompt.inputs(random)

        def prefill(random: RandomModel = random, inputs: dict[str, torch.Tensor] = inputs) -> None:
            random.model(**inputs, logits_to_keep=1)

        plain = counted(prefill)
        frozen = {} if method == "covist-max" else {"concentration": 0.05}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with covist.compress(random.model, random.tokenizer, method=method, budget=prompt.budget, **frozen):
                found.append((counted(prefill), plain))
    shallow, deep = (compressed.operators - plain.operators for compressed, plain in found)
    per_layer = (deep - shallow) / (DEPTHS[1] - DEPTHS[0])
    return Added(shallow - per_layer * DEPTHS[0], per_layer, found[0][0].waits - found[0][1].waits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the prompts that have limits, with covist-max")
    quick = parser.parse_args().quick
    row(["tokens / budget", "method", "operators once", "per layer", "host reads"])
    row(["---"] * 5)
    known: dict[tuple[str, str], Added] = {}
    with path("accelerator"):
        for prompt in PROMPTS[:2] if quick else PROMPTS:
            for method in METHODS[:1] if quick else METHODS:
                one = known[prompt.name, method] = added(prompt, method)
                row([prompt.name, method, f"{one.once:g}", f"{one.per_layer:g}", f"{one.reads:g}"])
                sys.stdout.flush()
    one, batch = (known[prompt.name, "covist-max"] for prompt in PROMPTS[:2])
    reached = {
        f"covist-max adds {one.once:g} operators (at most {MOST_OPERATORS})": one.once <= MOST_OPERATORS,
        f"it adds {one.reads:g} host reads (at most {MOST_READS})": one.reads <= MOST_READS,
        f"a batch of 8 adds {batch.once / one.once:.2f} times as many (at most {MOST_OF_A_BATCH})": (
            batch.once <= MOST_OF_A_BATCH * one.once
        ),
    }
    print()
    for line, held in reached.items():
        print(f"{line}: {'reached' if held else 'MISSED'}")
    return 0 if all(reached.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
