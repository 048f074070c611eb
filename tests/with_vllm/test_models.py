"""Small random models of many classes: with compression, vLLM says what covist says in transformers.

One class of ours serves them all; the cases differ in how images stand in the prompt and in what the decoder is.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.vllm_families import NARROW, Served, serve
from support.vllm_models import MODELS
from support.vllm_reference import largest_difference

from covist.vllm.settings import BY_EMBEDDINGS, WITHOUT_WEIGHTS

pytestmark = pytest.mark.vllm

EXACT = 1e-4
"""Between two ways to compute the same in single precision."""
QUESTION = "{image} what is the colour of this ?"
CASES: dict[str, dict[str, Any]] = {
    "llava-1.5 multi-head": {},
    "llava-next multi-head": {},  # newlines stay
    "llava-onevision": {},
    "pixtral": {},  # LLaVA's class with another tower
    "internvl over qwen2": {},  # tiles in one run
    "idefics3": {},  # marks between tiles
    "smolvlm": {},
    "mistral3": {},  # a mark after every row
    "qwen2-vl grouped-query": {},
    "qwen2.5-vl grouped-query": {},  # positions on a grid
    "qwen3-vl grouped-query": {},  # features for later layers
    "glm4v": {},
    "vipllava": {},  # vLLM's Transformers backend
}


@pytest.fixture(scope="module", params=CASES)
def served(request, engine, tmp_path_factory) -> Served:
    options = dict(CASES[request.param])
    settings = {"method": options.pop("method", BY_EMBEDDINGS), "budget": 10}
    folder = tmp_path_factory.mktemp("model")
    return serve(engine, MODELS[request.param], folder, settings, **{**NARROW, **options})


def test_the_same_tokens_and_log_probabilities_as_in_transformers(served):
    asks = [served.ask(QUESTION, index) for index in range(3)]
    asks += [served.ask("{image} {image} what is this and that ?", 2, 0), served.ask("{image} is this that ?", 0)]
    completions = served.generate(asks)
    assert largest_difference(completions, served.compressed(asks)) < EXACT
    again = served.generate(asks)  # with prefix hits, where the model has them
    assert largest_difference(again, served.compressed(asks)) < EXACT


def test_budgets_of_requests_and_text_in_one_batch(served):
    text = served.ask("what is the colour of that ?")
    few, share = served.ask(QUESTION, 1, covist_budget=5), served.ask(QUESTION, 2, covist_budget="25%")
    whole = served.ask(QUESTION, 1, covist_budget="100%")
    completions = served.generate([text, few, share, whole])
    references = [
        *served.plain([text]),
        *served.compressed([few], budget=5),
        *served.compressed([share], budget="25%"),
        *served.plain([whole]),
    ]
    assert largest_difference(completions, references) < EXACT


def first_differences(completions: list[Any], references: list[Any]) -> list[float]:
    """Largest difference of a log-probability at the first generated token, for each prompt."""
    pairs = zip(completions, references, strict=True)
    found = [float((one.log_probs[0] - log_probs[0]).abs().max()) for one, (_, log_probs) in pairs]
    print("differences at the first token:", *(f"{one:.1e}" for one in found))
    return found


def test_linear_attention_agrees_as_far_as_half_precision_goes(engine, tmp_path):
    """Most layers of Qwen3.5; their kernel on CPUs takes bfloat16 only, so float32 is compared with both engines.

    bfloat16 sometimes changes which tokens are chosen, in either engine and not for the same images. So the ranges are
    compared: the smallest differences have the same choice, the largest another one.
    """
    settings = {"method": BY_EMBEDDINGS, "budget": 10}
    served = serve(engine, MODELS["qwen3.5"], tmp_path, settings, **NARROW, dtype="bfloat16")
    half = replace(served, case=replace(served.case, build=lambda: copy.deepcopy(served.case.model).bfloat16()))
    found: dict[str, list[float]] = {"vLLM": [], "transformers": []}
    for budget in (10, 14, 20):
        asks = [served.ask(QUESTION, index, covist_budget=budget) for index in range(3)]
        exact, rounded = (one.compressed(asks, budget=budget) for one in (served, half))
        found["vLLM"] += first_differences(served.generate(asks), exact)
        theirs = [SimpleNamespace(log_probs=log_probs) for _, log_probs in rounded]
        found["transformers"] += first_differences(theirs, exact)
    assert max(found["vLLM"]) < 3 * max(found["transformers"])
    assert min(found["vLLM"]) < 5 * min(found["transformers"])


def test_latent_attention_agrees_as_far_as_it_does_on_text(engine, tmp_path):
    """Without weights, which latent attention cannot carry; the CPU's kernel and transformers differ in text alone."""
    options = {**NARROW, "attention_backend": "CPU_MLA", "block_size": 16}
    served = serve(
        engine, MODELS["llava over deepseek"], tmp_path, {"method": WITHOUT_WEIGHTS, "budget": 10}, **options
    )
    said = ("what is the colour of that ?", "is this that ?", "what is this and that ? is this the colour of that ?")
    texts, few = [served.ask(one) for one in said], [served.ask(QUESTION, index) for index in range(3)]
    whole = [replace(ask, options={"covist_budget": "100%"}) for ask in few]
    without = first_differences(served.generate(texts), served.plain(texts))
    assert max(first_differences(served.generate(whole), served.plain(whole))) < 1.5 * max(without)
    assert max(first_differences(served.generate(few), served.compressed(few))) < 1.5 * max(without)
