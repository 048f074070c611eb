"""Operators launched and host reads, which make an accelerator wait, counted on the CPU.

    python benchmarks/launches.py

Counts do not depend on the machine. Operators are those that launch work; views, which only reinterpret memory, are
counted separately. A host read is anything that needs a value, or a size that depends on values. Exits with 1 if a
limit is missed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from decoding_launches import added_to_a_step
from state_building import EMBEDDING_WIDTH, KEY_WIDTH, VIEWS, Launches, clustered
from torch.overrides import TorchFunctionMode

from covist.contract.method import Method
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.formulas import greedy
from covist.formulas.dense_greedy import grow_on_device
from covist.grid import Grid
from covist.methods.create import create_method

HEADS, PATCHES, TEXT_TOKENS, TEXT_WIDTH = 16, 576, 12, 768
BEFORE = 1902
"""Operators of the CPU path at (576, 64) when they were first counted; the limit is half of them."""
BUILDING = [  # path, N, K, most operators, most host reads
    ("accelerator", 576, 64, 700, 10),
    ("accelerator", 2880, 640, 6000, 10),
    ("cpu", 576, 64, BEFORE / 2, None),
]
MOST_PER_STEP = 8
MOST_PER_LAYER, MOST_PER_DECODING = 1, 25
FREE = ("detach", "lift_fresh")
"""Operators that launch nothing, although they are not declared as views."""


class Counter(Launches):
    """Operators without views, views, and host reads."""

    def __init__(self) -> None:
        super().__init__()
        self.views = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.views += func.is_view or func.overloadpacket.__name__ in FREE
        return super().__torch_dispatch__(func, types, args, kwargs)

    @property
    def operators(self) -> int:
        return self.total - self.views


class Reads(TorchFunctionMode):
    """Host reads without an operator, because the tensor is already on the CPU."""

    UNSEEN = ("tolist", "cpu", "numpy")

    def __init__(self, counter: Counter):
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.counter.waits += getattr(func, "__name__", "") in self.UNSEEN
        return func(*args, **(kwargs or {}))


def counted(run: Callable[[], object]) -> Counter:
    """Counts of one call, after a warm-up call."""
    with torch.no_grad():
        run()
        with Counter() as counter, Reads(counter):
            run()
    return counter


@contextmanager
def path(name: str) -> Iterator[None]:
    """Use the code path of the accelerator or of the CPU, whatever the device."""
    before, greedy.DENSE = greedy.DENSE, name == "accelerator"
    try:
        yield
    finally:
        greedy.DENSE = before


def image(size: int) -> ImageContext:
    """One image with the signals of its encoder and an instruction in CLIP's text space."""
    generator, grid = torch.Generator().manual_seed(size), Grid(VIEWS[size])
    keys, embeddings = clustered(size, KEY_WIDTH, generator), clustered(size, EMBEDDING_WIDTH, generator)
    attention = torch.rand(size // PATCHES, HEADS, PATCHES, generator=generator).pow(3)
    signals = ImageSignals(
        grid=grid,
        span=embeddings,
        content=torch.ones(size, dtype=torch.bool),
        read_attention=lambda: attention / attention.sum(-1, keepdim=True),
        read_keys=lambda: keys,
        read_hidden=lambda: embeddings,
        pack=torch.randperm(size, generator=generator),
        project=lambda features: features,
    )
    unused: Any = SimpleNamespace()
    context = ImageContext(signals=signals, positions=torch.arange(size), instruction=unused, decoder=unused)
    context.__dict__["patch_text_features"] = torch.randn(size, TEXT_WIDTH, generator=generator)
    context.__dict__["text_features"] = torch.randn(TEXT_TOKENS, TEXT_WIDTH, generator=generator)
    return context


def row(cells: list[object]) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def state_building() -> bool:
    """From the encoder's signals to the composed state: head mixing, instruction, selection, composition."""
    print("State building\n")
    row(["path", "N", "K", "operators", "limit", "views", "host reads", "limit"])
    row(["---"] * 8)
    reached = True
    for name, size, count, operators, reads in BUILDING:
        context, method = image(size), create_method("covist-fixed")

        def build(context: ImageContext = context, method: Method = method, count: int = count) -> None:
            method.begin(copy(context), count)  # nothing known from the warm-up; the signals that it read are the input

        with path(name):
            found = counted(build)
        row([name, size, count, found.operators, f"{operators:g}", found.views, found.waits, reads or ""])
        reached &= found.operators <= operators and (reads is None or found.waits <= reads)
    return reached & greedy_step()


def greedy_step() -> bool:
    """Operators per step of the accelerator's loop."""
    generator = torch.Generator().manual_seed(0)
    rows = clustered(PATCHES, 64, generator)
    unit = torch.nn.functional.normalize(rows)
    s, omega = (unit @ unit.T).clamp(0, 1), torch.rand(PATCHES, generator=generator).softmax(0)
    few, many = (counted(lambda steps=steps: grow_on_device(s, omega, torch.arange(0), steps)) for steps in (8, 72))
    operators, reads = (many.operators - few.operators) / 64, (many.waits - few.waits) / 64
    print(f"\nPer step of the accelerator's greedy loop: {operators:g} operators, {reads:g} host reads")
    return operators <= MOST_PER_STEP and reads == 0


def decoding() -> bool:
    """What compression adds to a decoding step of the plain model with a cache of the same length."""
    print("\nDecoding, added to a step of the plain model\n")
    print("| method | dtype | operators per layer | limit | once per step | limit | host reads |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    reached = True
    for name, dtype, per_layer, constant, reads in added_to_a_step():
        print(
            f"| {name} | {dtype} | {per_layer:g} | {MOST_PER_LAYER} | {constant:g} | {MOST_PER_DECODING} | {reads:g} |"
        )
        reached &= per_layer <= MOST_PER_LAYER and constant <= MOST_PER_DECODING and reads <= 0
    return reached


def main() -> int:
    reached = state_building() & decoding()
    print("\nAll limits reached." if reached else "\nA limit was MISSED.")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
