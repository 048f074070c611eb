"""LLaVA-1.5: the embedded model in vLLM says what it says in transformers."""

from __future__ import annotations

import pytest
from support.vllm_reference import compressed, largest_difference

pytestmark = pytest.mark.vllm

ARCHITECTURE = "CovistLlavaForConditionalGeneration"
COLUMNS = 32
"""Heads of 32 become 64 wide, the next that the CPU's attention has."""
FROZEN = 0.05


@pytest.fixture(scope="module")
def served(engine, embedded):
    return engine.serve(embedded[2], ARCHITECTURE, {"budget": 64, "concentration": FROZEN})


def test_the_same_tokens_and_log_probabilities_as_in_transformers(served, embedded, asks):
    model, processor, _ = embedded
    completions = served.generate(asks)
    assert {len(one.prompt) for one in completions} <= set(range(64, 90))
    same = compressed(model, processor, asks, columns=COLUMNS, budget=64, concentration=FROZEN)
    exact = compressed(model, processor, asks, budget=64, concentration=FROZEN)
    print("series", largest_difference(completions, same), "exact", largest_difference(completions, exact))
    assert largest_difference(completions, same) < 1e-4
    assert largest_difference(completions, exact) < 0.2
