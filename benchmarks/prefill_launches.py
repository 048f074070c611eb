"""What compression adds to a prefill, counted in operators and host reads, so that it is the same on any machine.

    python benchmarks/prefill_launches.py [--quick]

A prefill launches the same operators for any length, so what a compressed one adds is its difference from the plain one
of the same prompt: vision tower, projector and decoder are in both. Models of two depths give the difference per layer
and the rest. Narrow models with random weights run on an accelerator that is not there (`accelerator.py`), once with
the loop of greedy coverage in torch's operators and once with its Triton kernel, which counts as one operator. Exits
with 1 if a limit is missed.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

import torch
from accelerator import Accelerator, move, on_device
from launches import row
from torch import Tensor

import covist
from covist.bench.random_models import RandomModel, build_random
from covist.bench.recipes import recipe_for
from covist.formulas import dense_greedy, greedy

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
    Prompt("16 frames, 4096 / 2048", "qwen3-vl-8b-video", 128),
)


@dataclass(frozen=True)
class Added:
    """Operators once per prefill and per layer, and host reads."""

    once: float
    per_layer: float
    reads: float


@contextmanager
def kernel(accelerator: Accelerator) -> Iterator[None]:
    """Let one launch stand for the kernel, which needs a GPU; its memory is cleared before."""

    def grow(affinity: Tensor, units: Tensor, start: Tensor, steps: int) -> Tensor:
        accelerator.count("operators", "zeros")
        accelerator.count("operators", "greedy kernel")
        with accelerator.paused(), patch.object(greedy, "DENSE", False):
            return greedy.greedy_tokens(affinity, units / dense_greedy.UNITS, start, start.shape[-1] + steps)[
                ..., start.shape[-1] :
            ]

    with patch.object(dense_greedy._KERNEL, "grow", grow):
        yield


def counted(random: RandomModel, inputs: dict[str, Tensor]) -> Iterator[tuple[int, int]]:
    """Operators and host reads of a prefill, without the kernel and with it."""
    given = {name: on_device(value) for name, value in inputs.items()}
    move(random.model)
    try:
        for warm, has_kernel in ((True, True), (False, False), (False, True)):
            accelerator = Accelerator()
            with torch.no_grad(), kernel(accelerator) if has_kernel else nullcontext(), accelerator:
                random.model(**given, logits_to_keep=1)
            if not warm:
                yield accelerator.operators.total(), accelerator.reads.total()
    finally:
        move(random.model, back=True)


def added(prompt: Prompt, method: str) -> tuple[Added, Added]:
    """What `method` adds to the prefill of a prompt, without the kernel and with it."""
    found: list[list[tuple[int, int]]] = []  # by depth: operators and reads, without the kernel and with it
    for depth in DEPTHS:
        shallow = recipe_for(prompt.geometry)[1].shallow
        random = build_random(prompt.geometry, SCALE, decoder={"num_hidden_layers": depth}, vision=shallow)
        inputs = prompt.inputs(random)
        plain, *_ = counted(random, inputs)
        frozen = {} if method == "covist-max" else {"concentration": 0.05}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with covist.compress(random.model, random.tokenizer, method=method, budget=prompt.budget, **frozen):
                compressed = list(counted(random, inputs))
        found.append([(operators - plain[0], reads - plain[1]) for operators, reads in compressed])
    return _split(found[0][0], found[1][0]), _split(found[0][1], found[1][1])


def _split(shallow: tuple[int, int], deep: tuple[int, int]) -> Added:
    per_layer = (deep[0] - shallow[0]) / (DEPTHS[1] - DEPTHS[0])
    return Added(shallow[0] - per_layer * DEPTHS[0], per_layer, shallow[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the prompts that have limits, with covist-max")
    quick = parser.parse_args().quick
    row(["tokens / budget", "method", "operators once", "with the kernel", "per layer", "host reads"])
    row(["---"] * 6)
    known: dict[tuple[str, str], Added] = {}
    for prompt in PROMPTS[:2] if quick else PROMPTS:
        for method in METHODS[:1] if quick else METHODS:
            loop, one = added(prompt, method)
            known[prompt.name, method] = one
            row([prompt.name, method, f"{loop.once:g}", f"{one.once:g}", f"{one.per_layer:g}", f"{one.reads:g}"])
            sys.stdout.flush()
    one, batch = (known[prompt.name, "covist-max"] for prompt in PROMPTS[:2])
    reached = {
        f"covist-max adds {one.once:g} operators with the kernel (at most {MOST_OPERATORS})": (
            one.once <= MOST_OPERATORS
        ),
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
