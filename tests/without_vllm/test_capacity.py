"""The arithmetic of docs/vllm.md, written out."""

import pytest
import torch
from transformers import AutoModelForImageTextToText
from vllm_tables import PARAMETERS, Card, concurrent_requests, token_bytes

from covist.bench.random_models import random_config
from covist.families.registry import geometry_named

NEXT, QWEN = geometry_named("llava-next-7b"), geometry_named("qwen2.5-vl-7b")
VOCABULARIES = {"llava-next-7b": 32064, "qwen2.5-vl-7b": 152064}


def test_a_token_costs_keys_and_values_of_every_layer_and_head():
    assert token_bytes(NEXT) == 32 * 32 * 128 * 2 * 2 == 524_288
    assert token_bytes(QWEN) == 28 * 4 * 128 * 2 * 2 == 57_344


def test_wide_heads_cost_every_token_as_much_as_they_are_wider():
    assert token_bytes(NEXT, columns=8) == 32 * 32 * 136 * 2 * 2
    assert token_bytes(NEXT, columns=128) == 2 * token_bytes(NEXT)


def test_requests_fit_into_what_the_weights_leave():
    free = 0.9 * 80e9 - 2 * 7.06e9  # 57.88 GB
    assert concurrent_requests(NEXT, 7.06e9, 3056) == int(free / (3056 * 524_288)) == 36
    assert concurrent_requests(NEXT, 7.06e9, 336, columns=8) == int(free / (336 * 557_056)) == 309


def test_a_request_takes_whole_blocks():
    assert concurrent_requests(QWEN, 8.29e9, 33) == concurrent_requests(QWEN, 8.29e9, 48)


def test_a_card_filled_by_the_weights_holds_no_request():
    assert concurrent_requests(NEXT, 7.06e9, 100, card=Card(memory=15e9)) == 0


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_parameters_are_those_of_the_published_sizes(name):
    config = random_config(name, 1.0, decoder={"vocab_size": VOCABULARIES[name], "tie_word_embeddings": False})
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(PARAMETERS[name], rel=0.01)
