"""Families: which there are, how one is added, and what an unknown model is told."""

import pytest
import torch
from support.families import llava_next, llava_next_inputs, llava_next_processor, smooth_image
from torch import nn
from transformers import LlavaNextForConditionalGeneration

import covist
from covist.families import registry
from covist.families.llava_next import LlavaNext


@pytest.fixture
def toy_family(monkeypatch):
    """A family outside the package, registered for one test: a model class of its own and one decorated class."""
    covist.available_families()  # imports the families that ship, so that the copy below holds them
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))

    class ToyForConditionalGeneration(LlavaNextForConditionalGeneration):
        pass

    @registry.register_family
    class Toy(LlavaNext):
        name = "toy"
        model_classes = ("ToyForConditionalGeneration",)

    return ToyForConditionalGeneration, Toy


def test_the_families_of_the_paper_are_listed():
    assert (
        covist.available_families().items()
        >= {
            "llava-1.5": ("LlavaForConditionalGeneration",),
            "llava-next": ("LlavaNextForConditionalGeneration",),
            "qwen2.5-vl": ("Qwen2_5_VLForConditionalGeneration",),
        }.items()
    )


def test_one_decorated_class_adds_a_family_that_compresses(toy_family):
    model_class, family = toy_family
    assert covist.available_families()["toy"] == ("ToyForConditionalGeneration",)
    plain = llava_next()
    model = model_class(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    assert type(registry.family_for(model)) is family
    inputs = llava_next_inputs(["USER: {image}what is this ? ASSISTANT:"], [smooth_image(90, 61)])
    with covist.compress(model, llava_next_processor(), budget=6, method=_first_tokens()) as handle:
        model(**inputs)
    assert handle.report.images[0].tokens_per_layer == (6,) * 4


def test_an_unknown_model_is_told_the_families_and_how_to_add_one():
    class Unheard(nn.Module):
        pass

    with pytest.raises(ValueError, match="Unheard is not a supported model.*") as refused:
        covist.compress(Unheard())
    message = str(refused.value)
    assert all(classes[0] in message for classes in covist.available_families().values())
    assert "@register_family" in message


def _first_tokens():
    from covist.contract.method import Method

    class FirstTokens(Method):
        name = "first-tokens"

        def select(self, image, count):
            return torch.arange(count)

    return FirstTokens()
