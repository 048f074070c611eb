"""What does not go together with compression is refused in one sentence, before a model is loaded."""

from __future__ import annotations

import re

import pytest
from support.cases import first_of
from support.vllm_engines import Engine, EngineError
from support.vllm_families import serve
from support.vllm_models import LATENT
from support.vllm_reference import compressed

from covist.vllm.settings import BY_EMBEDDINGS

pytestmark = pytest.mark.vllm

ARCHITECTURE = "CovistLlavaForConditionalGeneration"
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}


@pytest.mark.parametrize(
    "settings, options, reason",
    [
        ({"method": "covist-pro"}, {}, "vLLM has one block table for all layers"),
        ({"method": "fastv"}, {}, "fastv removes tokens inside the decoder"),
        ({"budget": "auto"}, {}, "vLLM fixes the prompt's length before the image is seen"),
        ({"min_coverage": 0.9}, {}, "min_coverage is not possible"),
        ({"budget": None}, {}, '"covist" has no budget'),
        ({"colour": 1}, {}, "unknown setting colour"),
        ({"clip": "somewhere"}, {}, "clip needs the instruction"),
        ({}, {"pipeline_parallel_size": 2}, "pipeline parallelism is not possible"),
        ({}, {"kv_cache_dtype": "fp8"}, "a KV cache in fp8 cannot hold the bias"),
        ({}, {"enable_mm_embeds": True}, "embeddings of images cannot be compressed"),
        ({"columns": 24}, {}, "CPU_ATTN does not support head size 56"),
    ],
)
def test_is_refused(engine, embedded, settings, options, reason):
    with pytest.raises(EngineError, match=re.escape(reason)):
        engine.serve(embedded[2], ARCHITECTURE, {"budget": 64, **settings}, **options)


def test_a_method_that_reads_the_tower_is_refused_where_it_is_not_read(engine, tmp_path):
    with pytest.raises(EngineError, match="covist-fixed reads the vision tower, .* use covist-max:features=embeddings"):
        serve(engine, first_of("internvl"), tmp_path, {"method": "covist-fixed", "budget": 10})


def test_latent_attention_is_refused_a_bias_with_what_leaving_it_out_costs(engine, tmp_path):
    options = {"attention_backend": "CPU_MLA", "block_size": 16}
    with pytest.raises(EngineError, match="MLAAttention cannot carry a bias; use .*weights=off, .* 5 to 8 points"):
        serve(engine, LATENT, tmp_path, {"method": BY_EMBEDDINGS, "budget": 10}, **options)


def test_prompt_lookup_drafts_are_supported(embedded, asks):
    own = Engine()  # what they import keeps vLLM from starting another engine in the same process
    served = own.serve(embedded[2], ARCHITECTURE, {"budget": 64}, speculative_config=NGRAM)
    completions = served.generate(asks[:2])
    own.close()
    model, processor, _ = embedded
    references = compressed(model, processor, asks[:2], columns=32, budget=64)
    assert [one.ids for one in completions] == [ids for ids, _ in references]
