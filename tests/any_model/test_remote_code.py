"""A model that is not in transformers: its code lies beside its weights, and it follows transformers' pattern."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from support import checks
from support.checks import TOLERANCE, Subject
from support.zoo.matrix import unevenness
from transformers import AutoConfig, AutoModelForImageTextToText, dynamic_module_utils

from covist.families.generic import Generic

CODE = Path(__file__).parent / "owl"
IMAGE, SIDE, PATCH = 90, 32, 4
TOKENS = (SIDE // PATCH // 2) ** 2
TEXT = {
    **{"model_type": "qwen3", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}
CONFIGURATION = {
    "model_type": "owl",
    "auto_map": {
        "AutoConfig": "configuration_owl.OwlConfig",
        "AutoModelForImageTextToText": "modeling_owl.OwlForConditionalGeneration",
    },
    "text_config": TEXT,
    "vision_config": {"image_size": SIDE, "patch_size": PATCH},
}


class Owl(Subject):
    tokens, budget, suppressed = TOKENS, 4, [0, IMAGE]

    def __init__(self, model):
        self.model = model

    def prompt(self, images=1):
        ids = torch.tensor([[5, 6, 7, *([IMAGE] * TOKENS + [11, 12]) * images, *range(20, 30)]])
        pixels = torch.randn(images, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(images))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}

    def batch(self):
        one, two = self.prompt(1), self.prompt(2)
        missing = two["input_ids"].shape[1] - one["input_ids"].shape[1]
        together = {
            name: torch.cat([torch.nn.functional.pad(one[name], (missing, 0)), two[name]])
            for name in ("input_ids", "attention_mask")
        }
        return {**together, "pixel_values": torch.cat([one["pixel_values"], two["pixel_values"]])}, [one, two]

    def question(self):
        return torch.tensor([[31, 32, 33]])

    def longer(self, inputs, ids):
        return {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def is_image(self, ids):
        return ids == IMAGE


@pytest.fixture(scope="module")
def owl(tmp_path_factory):
    """Saved with its code and loaded as a stranger would load it."""
    folder = tmp_path_factory.mktemp("owl")
    with pytest.MonkeyPatch.context() as patch:  # transformers copies the code there
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield Owl(_saved_and_loaded(folder))


def _saved_and_loaded(folder):
    shutil.copytree(CODE, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGURATION))
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    torch.manual_seed(0)
    first = AutoModelForImageTextToText.from_config(config, trust_remote_code=True)
    with torch.no_grad():
        for parameter in first.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.08)
    first.save_pretrained(folder)
    return AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True).eval()


def test_remote_code_is_served_by_the_generic_family(compress, owl):
    assert type(owl.model).__module__.startswith("transformers_modules")
    handle = compress(owl.model, method="covist-max", budget=4)
    assert type(handle.settings.family) is Generic


def test_a_full_budget_is_the_plain_model(compress, owl):
    assert checks.from_the_plain_model(compress, owl, "covist-max") == 0


@pytest.mark.parametrize("method", ["covist-max", "covist-fixed", "covist-pro"])
def test_small_budgets_are_the_literal_reference(compress, owl, method):
    assert checks.from_the_literal_reference(compress, owl, method, budget=6) < TOLERANCE


def test_padded_batches_are_their_prompts_alone(compress, owl):
    assert checks.from_the_prompts_alone(compress, owl, "covist-max") < TOLERANCE


def test_generation_with_a_cache_is_generation_without(compress, owl):
    assert checks.from_generation_without_a_cache(compress, owl, "covist-max") < TOLERANCE


def test_removal_leaves_nothing(compress, owl):
    assert checks.from_itself_before(compress, owl, "covist-max") == 0


def test_the_attention_of_its_tower_is_read(compress, owl):
    assert unevenness(compress, owl) > 1e-3
