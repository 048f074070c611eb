"""Each image gets as many tokens as it needs, and none is compressed that would lose too much."""

import pytest
import torch
from support.llava import TOKENS, ask
from support.requests import assert_same, greedy, kept_keys, sample_of, step_logits

from covist.errors import CovistError

AUTO = "auto:0.9:4:72"
PROMPTS = (
    "USER: <image> what color is this ? ASSISTANT:",
    "USER: is there a word in the image ? ASSISTANT:",
    "USER: where <image> and <image> what color is the left object of this image ? ASSISTANT:",
)
IMAGES = (slice(0, 1), slice(1, 1), slice(1, 3))


def counts(handle):
    return [image.budget for image in handle.report.images]


def test_an_image_runs_as_under_a_fixed_budget_of_its_count(model, strategy, compress, clip):
    question = ask(PROMPTS[0])
    handle = compress(model, budget=AUTO, strategy=strategy, clip=clip)
    found = greedy(model, question)
    (count,) = counts(handle)
    assert 4 < count < 72
    kept = [stage.kept for stage in handle.report.images[0].stages]
    handle.remove()
    fixed = compress(model, budget=count, strategy=strategy, clip=clip)
    assert_same(found, greedy(model, question), 0)
    assert [stage.kept.tolist() for stage in fixed.report.images[0].stages] == [own.tolist() for own in kept]


def test_every_image_of_a_batch_has_its_own_count_and_runs_as_alone(model, strategy, compress):
    handle = compress(model, budget=AUTO, strategy=strategy)
    inputs = ask(*PROMPTS)
    together = step_logits(greedy(model, inputs, 3))
    batch, alone = counts(handle), []
    for index, images in enumerate(IMAGES):
        logits = step_logits(greedy(model, sample_of(inputs, index, images), 3))
        alone += counts(handle) if images.stop > images.start else []
        torch.testing.assert_close(together[:, index], logits[:, 0], atol=1e-4, rtol=1e-4)
    assert batch == alone
    assert len(set(batch)) > 1


def test_beams_share_the_count_of_their_prompt(multi_head, compress):
    handle = compress(multi_head, budget=AUTO)
    greedy(multi_head, ask(PROMPTS[0]), 3, num_beams=3)
    assert len(set(counts(handle))) == 1


def test_the_cache_holds_what_each_image_needs(multi_head, compress):
    handle = compress(multi_head, budget=AUTO)
    question = ask(PROMPTS[0])
    output = greedy(multi_head, question, 1)
    text = question["input_ids"].shape[1] - TOKENS
    assert kept_keys(output.past_key_values) == [text + counts(handle)[0]] * 8


def test_a_higher_level_keeps_more(multi_head, compress):
    handle = compress(multi_head, budget="auto:0.5:4:72")
    found = []
    for level in (0.5, 0.8, 0.9, 1):
        with handle.using(budget=f"auto:{level}:4:72") as run:
            greedy(multi_head, ask(PROMPTS[0]), 1)
        found.append(run.report.images[0].budget)
    assert found == sorted(found)
    assert found[0] < found[2] < found[3] == 72


@pytest.mark.parametrize("method", ["divprune", "divprune+csc+sca", "fastv", "restore-divprune"])
@pytest.mark.parametrize("asked", [{"budget": "auto"}, {"budget": 24, "min_coverage": 0.9}])
def test_methods_that_measure_no_coverage_refuse_in_one_line(multi_head, compress, method, asked):
    with pytest.raises(CovistError, match="does not measure coverage, which (budget='auto'|min_coverage) needs"):
        compress(multi_head, method=method, concentration=None, **asked)


def test_a_method_for_single_calls_is_refused_as_well(multi_head, compress):
    handle = compress(multi_head, budget="auto")
    with pytest.raises(CovistError, match="divprune does not measure"), handle.using(method="divprune"):
        pass
    with handle.using(method="divprune", budget=24) as run:
        greedy(multi_head, ask(PROMPTS[0]), 1)
    assert run.report.images[0].budget == 24


@pytest.mark.parametrize("share", [0, -0.1, 1.1, "half", True, float("nan")])
def test_a_minimum_coverage_that_is_not_a_share_is_refused(multi_head, compress, share):
    with pytest.raises(CovistError, match="min_coverage must be a share"):
        compress(multi_head, min_coverage=share)


def test_an_image_that_would_be_covered_too_little_runs_uncompressed(model, strategy, compress):
    question = ask(PROMPTS[0])
    plain = greedy(model, question)
    compress(model, budget=16, strategy=strategy, min_coverage=0.999)
    assert_same(greedy(model, question), plain)


def test_an_image_that_is_covered_well_enough_is_compressed(multi_head, compress):
    handle = compress(multi_head, budget=AUTO, min_coverage=0.6)
    greedy(multi_head, ask(PROMPTS[0]), 1)
    assert counts(handle)[0] < 72


def test_a_minimum_coverage_above_the_level_raises_the_level(multi_head, compress):
    """More tokens within the bounds come before no compression at all."""
    handle = compress(multi_head, budget="auto:0.5:4:72", min_coverage=0.9)
    greedy(multi_head, ask(PROMPTS[0]), 1)
    with handle.using(budget=AUTO) as run:
        greedy(multi_head, ask(PROMPTS[0]), 1)
    assert counts(handle) == [run.report.images[0].budget]


def test_compressed_and_uncompressed_images_share_a_batch(multi_head, compress):
    inputs = ask(*PROMPTS)
    handle = compress(multi_head, budget=12)
    greedy(multi_head, inputs, 1)
    coverages = [image.certificate.coverage for image in handle.report.images]
    handle.remove()
    between = (min(coverages) + max(coverages)) / 2
    handle = compress(multi_head, budget=12, min_coverage=between)
    together = step_logits(greedy(multi_head, inputs, 3))
    found = handle.report.images
    assert [len(image.kept) for image in found] == [12 if one >= between else TOKENS for one in coverages]
    assert [image.missed for image in found] == [None if one >= between else pytest.approx(one) for one in coverages]
    assert "uncompressed: coverage would have been too low" in handle.report.summary
    for index, images in enumerate(IMAGES):
        alone = step_logits(greedy(multi_head, sample_of(inputs, index, images), 3))
        torch.testing.assert_close(together[:, index], alone[:, 0], atol=1e-4, rtol=1e-4)
