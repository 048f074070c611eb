"""Budgets of a prompt: a total that all images share, budgets by age, and a cap."""

from types import SimpleNamespace

import pytest
import torch
from support.llava import TOKENS, ask
from support.requests import assert_same, greedy, kept_keys, sample_of, step_logits

from covist.budget import Total
from covist.engine.allotment import Allotment
from covist.errors import CovistError

THREE = "USER: <image> and <image> and <image> what color is this ? ASSISTANT:"
TURNS = (
    "USER: <image> what color is this ? ASSISTANT: the left object "
    "USER: <image> and <image> where ? ASSISTANT: the word USER: <image> what is this ? ASSISTANT:"
)
ONE = "USER: <image> what color is this ? ASSISTANT:"
METHODS = ["covist-fixed", "covist-pro", "covist-max", "divprune", "fastv"]


def counts(handle):
    return [image.budget for image in handle.report.images]


# -- a total -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_all_images_together_have_the_total_whatever_the_method(multi_head, compress, method):
    handle = compress(multi_head, method=method, concentration=None, budget="total:120")
    greedy(multi_head, ask(THREE), 1)
    shared = counts(handle)
    assert sum(shared) == 120
    assert 16 <= min(shared) < max(shared)
    with handle.using(method="random") as run:
        greedy(multi_head, ask(THREE), 1)
    assert [image.budget for image in run.report.images] == shared  # the images decide, not the method


def test_each_image_runs_as_under_a_budget_of_its_count(model, strategy, compress):
    question = ask(ONE)
    handle = compress(model, budget="total:40", strategy=strategy)
    found = greedy(model, question)
    with handle.using(budget=40):
        assert_same(found, greedy(model, question), 0)


def test_what_covist_max_keeps_is_the_prefix_that_the_sharing_has_found(multi_head, compress):
    handle = compress(multi_head, method="covist-max", concentration=None, budget="total:90")
    inputs = ask(THREE)
    greedy(multi_head, inputs, 1)
    for place, (image, count) in enumerate(zip(handle.report.images, counts(handle), strict=True)):
        with handle.using(budget=count) as run:
            greedy(multi_head, inputs, 1)
        assert torch.equal(run.report.images[place].kept, image.kept)


def test_a_floor_is_kept_and_a_total_of_all_tokens_compresses_nothing(multi_head, compress):
    handle = compress(multi_head, method="covist-max", concentration=None, budget="total:150:45")
    greedy(multi_head, ask(THREE), 1)
    assert sum(counts(handle)) == 150 and min(counts(handle)) == 45
    with handle.using(budget=f"total:{3 * TOKENS}") as run:
        greedy(multi_head, ask(THREE), 1)
    assert [image.budget for image in run.report.images] == [TOKENS] * 3


def test_a_total_that_is_short_is_shared_equally_down_to_one_token_each(multi_head, compress):
    handle = compress(multi_head, method="covist-max", concentration=None, budget="total:20")
    greedy(multi_head, ask(THREE), 1)
    assert counts(handle) == [7, 7, 6]
    with handle.using(budget="total:3") as run:
        greedy(multi_head, ask(THREE), 1)
    assert [image.budget for image in run.report.images] == [1, 1, 1]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("total:2", "budget='total:2' is not enough for 3 images of at least 1 token each; give 3 or more"),
        ("total:40:20", "'total:40:20' is not enough for 3 images of at least 20 tokens each; give 60 or more"),
    ],
)
def test_a_total_below_its_floor_is_refused_in_one_line(multi_head, compress, budget, message):
    compress(multi_head, budget=budget)
    with pytest.raises(CovistError, match=message):
        greedy(multi_head, ask(THREE), 1)


def test_every_prompt_of_a_batch_has_a_total_of_its_own(multi_head, strategy, compress):
    handle = compress(multi_head, budget="total:60", strategy=strategy)
    inputs = ask(ONE, "USER: is there a word ? ASSISTANT:", THREE)
    together = step_logits(greedy(multi_head, inputs, 3))
    batch, alone = counts(handle), []
    for index, images in enumerate((slice(0, 1), slice(1, 1), slice(1, 4))):
        logits = step_logits(greedy(multi_head, sample_of(inputs, index, images), 3))
        alone += counts(handle) if images.stop > images.start else []
        torch.testing.assert_close(together[:, index], logits[:, 0], atol=1e-4, rtol=1e-4)
    assert batch == alone
    assert batch[0] == 60 == sum(batch[1:])


def test_beams_share_the_counts_of_their_prompt(multi_head, compress):
    handle = compress(multi_head, budget="total:60")
    greedy(multi_head, ask(THREE), 2, num_beams=3)
    assert counts(handle)[:3] == counts(handle)[3:6] == counts(handle)[6:]


def test_the_cache_holds_the_total(multi_head, compress):
    compress(multi_head, budget="total:60")
    question = ask(THREE)
    output = greedy(multi_head, question, 1)
    assert kept_keys(output.past_key_values) == [question["input_ids"].shape[1] - 3 * TOKENS + 60] * 8


def test_every_frame_of_a_video_counts_as_an_image():
    """The gains are the same for all: what differs is how many frames they stand for."""
    method = SimpleNamespace(coverage_gains=lambda image: iter(image.signals))
    settings = SimpleNamespace(budget=Total(30), max_visual_tokens=None, method=method)
    images = [
        SimpleNamespace(grid=SimpleNamespace(size=24, frames=frames), signals=[1 / 2**k for k in range(24)])
        for frames in (1, 8, 1)
    ]
    assert Allotment(settings).budgets(images, list) == [Total(10)] * 3  # not enough for 16 tokens each
    settings.budget = Total(30, floor=1)
    assert Allotment(settings).budgets(images, list) == [Total(9), Total(12), Total(9)]  # 8 is three halvings


# -- budgets by age ----------------------------------------------------------------------------------------------------


def test_older_turns_have_fewer_tokens_and_images_of_one_turn_equally_many(multi_head, compress):
    handle = compress(multi_head, budget="ages:64,32,8")
    greedy(multi_head, ask(TURNS), 1)
    assert counts(handle) == [8, 32, 32, 64]
    greedy(multi_head, ask(THREE), 1)
    assert counts(handle) == [64, 64, 64]


def test_a_new_turn_ages_the_images_before_it_and_text_does_not(multi_head, compress):
    handle = compress(multi_head, budget="ages:50%,25%")
    greedy(multi_head, ask(ONE), 1)
    assert counts(handle) == [72]
    greedy(multi_head, ask(f"{ONE} the word USER: where ? ASSISTANT:"), 1)
    assert counts(handle) == [72]
    greedy(multi_head, ask(f"{ONE} the word USER: where <image> ? ASSISTANT:"), 1)
    assert counts(handle) == [36, 72]


def test_with_covist_max_an_older_image_keeps_some_of_what_it_kept(multi_head, compress):
    """One reduction gives what a further one would keep: the order of its greedy does not depend on the count."""
    handle = compress(multi_head, method="covist-max", concentration=None, budget="ages:40,10")
    inputs = ask(f"{ONE} the word USER: where <image> ? ASSISTANT:")
    first = {"input_ids": ask(ONE)["input_ids"], "pixel_values": inputs["pixel_values"][:1]}
    greedy(multi_head, first, 1)
    before = handle.report.images[0].kept.tolist()
    greedy(multi_head, inputs, 1)
    after = handle.report.images[0].kept.tolist()
    assert len(after) == 10 and set(after) < set(before)


def test_an_image_in_a_kept_cache_stays_as_it_is(multi_head, compress):
    handle = compress(multi_head, budget="ages:40,10")
    first = greedy(multi_head, ask(ONE), 1)
    before = kept_keys(first.past_key_values)
    later = ask(ONE, seeds=(9,))
    ids = torch.cat([first.sequences, later["input_ids"][:, 1:]], 1)
    text = later["input_ids"].shape[1] - 1 - TOKENS
    second = greedy(
        multi_head, {"input_ids": ids, "pixel_values": later["pixel_values"]}, 1, past_key_values=first.past_key_values
    )
    assert counts(handle) == [40]
    # one more for the last token of the first turn, whose keys were not computed before
    assert kept_keys(second.past_key_values) == [own + 1 + text + 40 for own in before]


@pytest.mark.parametrize("options", [{"processor": None}, {"turn_markers": {"assistant": "[/INST]"}}])
def test_ages_without_turns_are_refused_in_one_line(multi_head, compress, options):
    compress(multi_head, budget="ages:64,32", **options)
    greedy(multi_head, ask(ONE), 1)
    with pytest.raises(CovistError, match="needs the turns of a conversation, and none are marked in a prompt of 4 im"):
        greedy(multi_head, ask(TURNS), 1)


# -- a cap -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "budget"),
    [("covist-fixed", 64), ("covist-fixed", "auto:0.9:4:72"), ("covist-pro", "50%"), ("covist-pro", "ages:64,8")]
    + [("covist-max", "total:200"), ("divprune", "100%")],
)
def test_no_layer_has_more_visual_tokens_than_the_cap(multi_head, compress, method, budget):
    handle = compress(multi_head, method=method, concentration=None, budget=budget, max_visual_tokens=36)
    greedy(multi_head, ask(THREE), 1)
    layers = list(zip(*(image.tokens_per_layer for image in handle.report.images), strict=True))
    assert 34 <= max(map(sum, layers)) <= 36
    assert len(handle.report.images) == 3 and min(map(min, layers)) >= 1


def test_a_cap_that_is_not_reached_changes_nothing(multi_head, strategy, compress):
    question = ask(THREE)
    handle = compress(multi_head, budget=16, strategy=strategy)
    expected = greedy(multi_head, question)
    with handle.using(max_visual_tokens=72):
        assert_same(greedy(multi_head, question), expected, 0)


def test_a_method_whose_first_layers_see_everything_is_refused_with_a_cap_in_one_line(multi_head, compress):
    handle = compress(multi_head, budget=64, max_visual_tokens=400)
    with (
        pytest.raises(CovistError, match="max_visual_tokens=400: the first layers see all tokens with fastv"),
        handle.using(method="fastv"),
    ):
        pass


def test_a_schedule_that_cannot_become_small_enough_is_refused_in_one_line(multi_head, compress):
    compress(multi_head, budget=16, strategy="pro", max_visual_tokens=3)
    with pytest.raises(CovistError, match="=3 is too small for these images: some layer sees 2 tokens of an image"):
        greedy(multi_head, ask(THREE), 1)


def test_a_cap_below_one_token_for_each_image_is_refused_in_one_line(multi_head, compress):
    compress(multi_head, budget=16, max_visual_tokens=2)
    with pytest.raises(CovistError, match="max_visual_tokens=2 is not enough for 3 images of at least 1 token each"):
        greedy(multi_head, ask(THREE), 1)


@pytest.mark.parametrize("cap", [0, -1, 1.5, True, "many", "64"])
def test_a_cap_that_is_no_number_of_tokens_is_refused(multi_head, compress, cap):
    with pytest.raises(CovistError, match="max_visual_tokens must be a positive number of tokens"):
        compress(multi_head, max_visual_tokens=cap)


@pytest.mark.parametrize("asked", [{"budget": "total:64"}, {"budget": "ages:64,8"}, {"max_visual_tokens": 64}])
def test_a_minimum_coverage_cannot_be_had_at_the_same_time(multi_head, compress, asked):
    with pytest.raises(CovistError, match="min_coverage may run images uncompressed, which .* rules out; give one"):
        compress(multi_head, min_coverage=0.9, **asked)
