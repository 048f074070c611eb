"""Pixtral's tower under LLaVA and Mistral 3: images packed into one sequence, merged patches, row breaks."""

import pytest
import torch
from support.captures import captured
from support.case import SIZES
from support.cases import CASES
from support.families import smooth_image
from support.ledgers import ledgers
from support.matrix.pixtral import TOKENS
from support.requests import greedy
from support.towers import eager_attention
from transformers.models.pixtral import modeling_pixtral

from covist.families import incoming

TOWERS = [case for case in CASES if case.family in ("pixtral", "mistral3")]
ONE = "{image}what is this ?"


@pytest.fixture(params=TOWERS, ids=lambda case: case.name)
def case(request):
    return request.param


def received(case, inputs):
    """Incoming attention of each token [N] from the whole attention of the last layer, one token after the other."""
    with eager_attention(modeling_pixtral, case.model.model.vision_tower) as seen:
        case.model(**inputs)
    (weights,), merge = seen[-1].weights, case.slow.merge  # [heads, patches, patches]
    side = case.model.model.vision_tower.patch_size
    rows, columns = (length // side for length in inputs["image_sizes"][0].tolist())
    per_patch = weights.mean((0, 1)).view(rows, columns)
    return torch.stack(
        [
            per_patch[row : row + merge, column : column + merge].sum()
            for row in range(0, rows, merge)
            for column in range(0, columns, merge)
        ]
    )


def test_evidence_is_the_attention_that_the_patches_of_a_token_receive(case):
    inputs = case.ask(ONE)
    (signals,) = captured(case.model, inputs)
    torch.testing.assert_close(signals.attention[0, 0], received(case, inputs), atol=1e-6, rtol=1e-4)


def test_large_images_are_asked_in_a_checkerboard_unless_exact_attention_is_requested(case, monkeypatch):
    inputs = case.ask(ONE)
    monkeypatch.setattr(incoming, "ALL_QUERY_UP_TO", 0)
    (signals,) = captured(case.model, inputs)
    exact = received(case, inputs)
    assert not torch.allclose(signals.attention[0, 0], exact, rtol=1e-3)
    assert (signals.attention[0, 0] - exact).abs().sum() < 0.2 * exact.sum()


def test_images_packed_in_one_sequence_are_those_alone(case):
    together = captured(case.model, case.ask("{image}and{image}", ONE))
    for index, signals in enumerate(together):
        (alone,) = captured(case.model, case.ask(ONE, images=(index,)))
        assert signals.grid == alone.grid
        for name in ("attention", "keys", "hidden", "embeddings"):
            torch.testing.assert_close(getattr(signals, name), getattr(alone, name), atol=1e-5, rtol=1e-4)


def test_projecting_the_encoder_features_gives_the_embeddings_back(case):
    (signals,) = captured(case.model, case.ask(ONE))
    torch.testing.assert_close(signals.project(signals.hidden), signals.embeddings, atol=1e-5, rtol=1e-4)
    mixed = signals.hidden[:6].view(2, 3, -1)
    assert signals.project(mixed).shape == (2, 3, 32)


def test_row_breaks_stay_in_every_layer_at_their_positions_and_are_never_biased(case, strategy, compress):
    inputs = case.ask("this {image}and{image}what is that ?")
    ids = inputs["input_ids"][0]
    handle = compress(case, budget=12, strategy=strategy)
    cache = greedy(case.model, inputs, 1).past_key_values
    breaks = (ids == TOKENS["[IMG_BREAK]"]).nonzero()[:, 0].tolist()
    text = (ids != TOKENS["[IMG]"]).nonzero()[:, 0].tolist()
    assert breaks and set(breaks) <= set(text)
    for image in handle.report.images:
        assert image.markers == image.grid.views[0][0] - 1  # the mark after the last row is text after the image
    for ledger in ledgers(cache):
        keys = ledger.keys
        visual, positions = keys.image[0] >= 0, keys.positions[0]
        assert positions[~visual].tolist() == text
        assert visual.any() and bool((keys.log_weight[0][~visual] == 0).all())


def test_the_image_is_shown_without_the_padding_of_its_batch(case):
    (first, second) = captured(case.model, case.ask("{image}{image}what ?"))
    inputs = case.ask("{image}{image}what ?")
    for index, signals in enumerate((first, second)):
        height, width = inputs["image_sizes"][index].tolist()
        (view,) = signals.read_pixels()
        assert torch.equal(view, inputs["pixel_values"][index, :, :height, :width])


def test_images_that_fill_a_batch_need_no_sizes():
    case = next(case for case in TOWERS if case.family == "pixtral")
    inputs = case.encode(["{image}and{image}what ?"], [smooth_image(*SIZES[0], seed) for seed in (1, 2)])
    known = captured(case.model, inputs)
    inputs.pop("image_sizes")
    for ours, theirs in zip(captured(case.model, inputs), known, strict=True):
        assert ours.grid == theirs.grid and torch.equal(ours.span, theirs.span)
