"""RESTORE's bias as each layer receives it, against the formula."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.llava import LAYERS, TOKENS, ask, build_llava, processor
from support.requests import greedy

import covist

BUDGET = 24


def expected_bias(positions, sizes, frequencies, queries, distance):
    """Literal: log(size) on every key, log(2 - mean cos(delta theta)) on every causal pair if `distance`."""
    rows = []
    for q in range(len(positions) - queries, len(positions)):
        row = []
        for key in range(q + 1):
            delta = positions[q] - positions[key]
            factor = 2 - sum(math.cos(delta * theta) for theta in frequencies) / len(frequencies)
            row.append(math.log(sizes[key]) + (math.log(factor) if distance else 0.0))
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def seen():
    """Masks of every layer in prefill and in the first decoding step, and the report."""
    model, masks = build_llava(), []
    attention = F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask=None, **options):
        if attn_mask is not None:  # the vision tower has none
            masks.append(attn_mask)
        return attention(query, key, value, attn_mask=attn_mask, **options)

    inputs = ask("USER: <image> what color is this ? ASSISTANT:")
    with (
        pytest.MonkeyPatch.context() as patch,
        covist.compress(model, processor(), method="restore-divprune", budget=BUDGET) as handle,
    ):
        patch.setattr(F, "scaled_dot_product_attention", spy)
        greedy(model, inputs, 2)
    start = int((inputs["input_ids"][0] == model.config.image_token_id).int().argmax())
    frequencies = model.model.language_model.rotary_emb.inv_freq.tolist()
    return (
        masks[:LAYERS],
        masks[LAYERS:],
        handle.report.images[0].stages[0],
        start,
        inputs["input_ids"].shape[1],
        frequencies,
    )


@pytest.mark.parametrize("layer", [0, 1, LAYERS - 1])
@pytest.mark.parametrize("decoding", [False, True], ids=["prefill", "decoding"])
def test_bias(seen, layer, decoding):
    prefill, decode, stage, start, length, frequencies = seen
    visual = (start + stage.indices).tolist()
    after = list(range(start + TOKENS, length + decoding))
    positions = [*range(start), *visual, *after]
    own = stage.weights.tolist()
    if layer == 0 and not decoding:
        own = [TOKENS / BUDGET] * BUDGET
    sizes = [1.0] * start + own + [1.0] * len(after)
    queries = 1 if decoding else len(positions)
    mask = (decode if decoding else prefill)[layer][0]
    for head in mask:
        for row, expected in zip(
            head, expected_bias(positions, sizes, frequencies, queries, not decoding), strict=True
        ):
            torch.testing.assert_close(row[: len(expected)], torch.tensor(expected), atol=1e-5, rtol=1e-4)
            assert bool((row[len(expected) :] < -1e30).all())
