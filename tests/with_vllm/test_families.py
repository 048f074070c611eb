"""covist-fixed, which reads the vision tower, on small random models of every family whose tower is read."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from support.cases import first_of
from support.families import lively
from support.matrix.llava_next import llava_next
from support.vllm_families import Served, serve
from support.vllm_reference import largest_difference
from transformers import LlavaNextForConditionalGeneration, MistralConfig

pytestmark = pytest.mark.vllm

EXACT = 1e-4
COLUMNS = {"llava-next": 24, "qwen2-vl": 24, "qwen2.5-vl": 24, "qwen3-vl": 16}
"""What brings the heads of each to a width that the CPU's attention has."""


@pytest.fixture(scope="module", params=COLUMNS)
def served(request, engine, tmp_path_factory) -> Served:
    family = request.param
    return serve(engine, first_of(family), tmp_path_factory.mktemp(family), columns=COLUMNS[family])


def test_the_same_tokens_and_log_probabilities_as_in_transformers(served):
    asks = [served.ask("{image} what is the colour of this ?", index) for index in range(3)]
    asks += [served.ask("{image} {image} what is this and that ?", 2, 0), served.ask("{image} is this that ?", 0)]
    assert largest_difference(served.generate(asks), served.compressed(asks)) < EXACT


def test_budgets_of_requests_and_text_in_one_batch(served):
    question = "{image} what is the colour of this ?"
    text = served.ask("what is the colour of that ?")
    few, whole = served.ask(question, 1, covist_budget=5), served.ask(question, 1, covist_budget="100%")
    completions = served.generate([text, few, whole])
    references = [*served.plain([text]), *served.compressed([few], budget=5), *served.plain([whole])]
    assert largest_difference(completions, references) < EXACT


def test_a_decoder_of_another_kind(engine, tmp_path):
    """Mistral's, with which LLaVA-NeXT was published too."""
    case = replace(first_of("llava-next"), name="llava-next mistral", build=mistral)
    served = serve(engine, case, tmp_path, columns=COLUMNS["llava-next"])
    asks = [served.ask("{image} what is the colour of this ?", index) for index in range(2)]
    assert largest_difference(served.generate(asks), served.compressed(asks)) < EXACT


def mistral() -> LlavaNextForConditionalGeneration:
    config = copy.deepcopy(llava_next().config)
    text = config.text_config.to_dict() | {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None}
    config.text_config = MistralConfig(**text)
    torch.manual_seed(5)
    return lively(LlavaNextForConditionalGeneration(config).eval())
