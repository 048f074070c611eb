"""Two processes that share the heads of every layer."""

from __future__ import annotations

import pytest
from support.cases import CASES as ALL
from support.vllm_families import serve
from support.vllm_reference import largest_difference

from covist.vllm.settings import BY_EMBEDDINGS

pytestmark = pytest.mark.vllm


CASES = {
    "llava-next grouped-query": {"columns": 24},
    "qwen2.5-vl grouped-query": {
        "settings": {"method": BY_EMBEDDINGS, "budget": 10},
        "mm_encoder_tp_mode": "data",  # every rank encodes other images
    },
}


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_say_what_one_process_says(engine, tmp_path, name):
    case = next(case for case in ALL if case.name == name)
    served = serve(engine, case, tmp_path, **CASES[name], tensor_parallel_size=2)
    asks = [served.ask("{image} what is the colour of this ?", index) for index in range(3)]
    asks.append(served.ask("{image} {image} what is this and that ?", 2, 0))
    assert largest_difference(served.generate(asks), served.compressed(asks)) < 1e-3
