"""Families: which there are, how one is added, and what an unknown model is told."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from support.cases import FAMILIES
from support.families import smooth_image
from support.matrix.llava_next import llava_next, llava_next_inputs, llava_next_processor
from support.zoo import ZOO
from torch import nn
from transformers import LlavaNextForConditionalGeneration

import covist
from covist.families import registry
from covist.families.llava_next import LlavaNext
from covist.families.refusals import image_text_models


@pytest.fixture
def toy_family():
    """A family outside the package, registered for one test: a model class of its own and one decorated class."""

    class ToyForConditionalGeneration(LlavaNextForConditionalGeneration):
        pass

    @registry.register_family
    class Toy(LlavaNext):
        name = "toy"
        model_classes = ("ToyForConditionalGeneration",)

    return ToyForConditionalGeneration, Toy


def test_the_three_families_of_the_paper_are_listed():
    listed = covist.available_families()
    assert listed["llava-1.5"] == ("LlavaForConditionalGeneration",)
    assert listed["llava-next"] == ("LlavaNextForConditionalGeneration",)
    assert "Qwen2_5_VLForConditionalGeneration" in listed["qwen2.5-vl"]


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


def test_every_family_is_in_the_test_matrix_or_in_the_zoo():
    served = {(name, model) for name, classes in covist.available_families().items() for model in classes}
    known = {(name, model) for name, model in served if hasattr(transformers, model)}
    listed = image_text_models()
    in_zoo = {listed[entry.model_type] for entry in ZOO.values() if entry.model_type in listed}
    tested = {(case.family, case.model_class) for case in FAMILIES}
    assert tested <= known and {model for _, model in known - tested} <= in_zoo


def test_presets_have_names_of_their_own_and_say_what_they_cost():
    geometries = [geometry for family in registry.families() for geometry in family.presets]
    assert len({geometry.name for geometry in geometries}) == len(geometries)
    for geometry in geometries:
        assert geometry.tokens >= max(geometry.budgets) * geometry.frames and geometry.heads % geometry.kv_heads == 0


@pytest.fixture
def one_class_two_towers(toy_family):
    """Another family that serves a class of the first one, over another vision tower."""

    @registry.register_family
    class Blurry(LlavaNext):
        name = "blurry"
        model_classes = ("ToyForConditionalGeneration",)
        tower_types = ("blurry_vision_model",)

    return Blurry


def test_families_of_one_class_are_told_apart_by_the_vision_tower(one_class_two_towers):
    def found(tower):
        config = SimpleNamespace(vision_config=SimpleNamespace(model_type=tower))
        return registry.find_family(["ToyForConditionalGeneration"], config)[1].name

    assert (found("blurry_vision_model"), found("clip_vision_model")) == ("blurry", "toy")
    assert found("dino") == "generic"


def test_a_class_and_tower_cannot_be_served_twice(toy_family):
    with pytest.raises(ValueError, match="LlavaNextForConditionalGeneration is already served by the family llava-n"):
        registry.register_family(type("Again", (LlavaNext,), {"name": "again"}))


def test_a_module_that_is_not_a_vision_language_model_is_refused_in_one_line():
    class Unheard(nn.Module):
        pass

    with pytest.raises(ValueError, match="^Unheard has no text model with `layers`; only decoders can be compressed$"):
        covist.compress(Unheard())


def _first_tokens():
    from covist.contract.method import Method

    class FirstTokens(Method):
        name = "first-tokens"

        def select(self, image, count):
            return torch.arange(count)

    return FirstTokens()
