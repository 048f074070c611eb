"""Decoders of a few layers, where the cuts of CoViST-Pro round to the same layer: the budget still holds."""

import pytest
from support.llava import ask, build_llava
from support.requests import greedy

from covist.errors import CovistError

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
BUDGET = 24
DEPTHS = {"both before the first layer": (0.01, 0.02), "both after the last layer": (0.98, 0.99)}


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def short(request):
    return build_llava(layers=request.param)


@pytest.mark.parametrize("depths", DEPTHS.values(), ids=DEPTHS.keys())
def test_mean_over_the_layers_is_the_budget_or_refused(short, compress, depths):
    """Both cuts before the first layer would leave the last stage's K/4 in all layers, after the last layer 1.5 K."""
    try:
        handle = compress(short, budget=BUDGET, strategy="pro", stage_depths=depths)
        greedy(short, ask(PROMPT), 2)
    except CovistError as refusal:
        assert "stage_depths" in str(refusal) and "\n" not in str(refusal)
        return
    assert handle.report.mean_tokens == pytest.approx(BUDGET, abs=1), handle.report.images[0].tokens_per_layer


def test_published_depths_hold_in_every_decoder(short, compress):
    handle = compress(short, budget=BUDGET, strategy="pro")
    greedy(short, ask(PROMPT), 2)
    assert handle.report.mean_tokens == pytest.approx(BUDGET, abs=1)
