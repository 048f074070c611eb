"""docs/extending.md lists what a method reads: every field is there, with the shape and dtype that it really has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import covist
from covist import tiny
from covist.contract.signals import ImageSignals
from covist.contract.views import ImageContext
from covist.grid import Grid

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
CLASSES = {"image.": ImageContext, "image.signals.": ImageSignals, "image.grid.": Grid}
ARGUMENTS = {
    "packed": lambda image: (image.signals.attention.mean(1),),
    "project": lambda image: (image.signals.hidden,),
    "text_space": lambda image: (image.signals.hidden,),
    "smooth": lambda image: (torch.rand(image.grid.size),),
    "split": lambda image: (torch.rand(image.grid.size),),
    "per_view": lambda image: (torch.sqrt, torch.rand(image.grid.size)),
    "neighbour_similarity": lambda image: (torch.rand(image.grid.size, image.grid.size),),
}


def rows_of(prefix: str) -> dict[str, tuple[str, str]]:
    """Name -> shape and dtype, from the table whose heading is the prefix."""
    table = PAGE.split(f"| `{prefix}` | shape | dtype | what it is |\n|---|---|---|---|\n")[1].split("\n\n")[0]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return {name.strip("`"): (shape, kind) for name, shape, kind, _ in cells}


@pytest.fixture(scope="module")
def image() -> ImageContext:
    """What a method was really given, by a model in half precision."""
    seen = []

    class Watcher(covist.Method):
        name = "watcher"

        def select(self, image, count):
            seen.append(image)
            return list(range(count))

    size = tiny.Size(vision_layers=2, text_layers=1, decoder_layers=2)
    model, processor, clip = tiny.build_random(size=size)
    model.to(torch.bfloat16)
    shown, question, _ = tiny.demo()
    inputs = processor(images=shown, text=tiny.prompt_for(question), return_tensors="pt").to(torch.bfloat16)
    with covist.compress(model, processor, method=Watcher(), budget=16, clip=clip):
        model.generate(**inputs, max_new_tokens=1)
    return seen[0]


def value_of(image: ImageContext, prefix: str, name: str) -> Any:
    owner = {"image.": image, "image.signals.": image.signals, "image.grid.": image.grid}[prefix]
    value = getattr(owner, name.removesuffix("()"))
    if not name.endswith("()") or name == "read()":
        return value
    return value(*ARGUMENTS.get(name.removesuffix("()"), lambda image: ())(image))


@pytest.mark.parametrize("prefix", CLASSES)
def test_every_field_is_listed_or_said_to_be_internal(prefix):
    kind = CLASSES[prefix]
    public = {one.name for one in fields(kind)} | {name for name in vars(kind) if not name.startswith("_")}
    listed = {name.removesuffix("()") for name in rows_of(prefix)}
    internal = set(re.findall(r"`(\w+)`", PAGE.split("Its other fields belong")[1].split("\n\n")[0]))
    assert listed <= public, "the page lists what is not there"
    assert public - listed == (internal if kind is ImageSignals else set())


@pytest.mark.parametrize("prefix", CLASSES)
def test_shapes_and_dtypes_are_those_of_a_real_call(image, prefix):
    sizes = {
        "N": image.grid.size, "n": len(image.signals.span), "d": image.signals.span.shape[1], "2": 2,
        "tiles": 1, "heads": 4, "patches": image.grid.size,
    }  # fmt: skip
    for name, (shape, kind) in rows_of(prefix).items():
        value = value_of(image, prefix, name)
        if kind.startswith("`"):
            kinds = [type(value).__name__, *(base.__name__ for base in type(value).__mro__)]
            assert kind.strip("`") in kinds or kind in ("`TextSpace`", "`Decoder`") or name == "read()", name
            continue
        if kind:
            assert value.dtype == (torch.bfloat16 if kind == "model" else getattr(torch, kind)), name
        if shape:
            words = shape.strip("[]").split(", ")
            assert value.dim() == len(words), name
            for word, length in zip(words, value.shape, strict=True):
                assert sizes.setdefault(word, length) == length or word == "*", f"{name}: {word} is {length}"
