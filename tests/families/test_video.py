"""Videos: a joint state over time and space, in segments, with timestamps kept, beside images."""

import pytest
import torch
from support.requests import assert_same, greedy, step_logits
from support.videos import CASES_WITH_VIDEO, QUESTION, ask_about, frame_tokens, slow_with_videos

from covist.families import video
from covist.families.registry import family_for
from covist.families.video import segments
from covist.methods.registry import available_methods

PROMPTS = {
    "a video": ("this", 4),
    "an image and a video": ("image", "and", 3),
    "two videos": (3, "and", 2),
}
# Every two of strategy, segments and prompt meet.
PAIRS = pytest.mark.parametrize(
    ("strategy", "in_segments", "prompt"),
    [
        ("fixed", False, "a video"),
        ("pro", True, "a video"),
        ("fixed", True, "an image and a video"),
        ("pro", False, "an image and a video"),
        ("fixed", False, "two videos"),
        ("pro", True, "two videos"),
    ],
    indirect=["strategy", "in_segments"],
)


@pytest.fixture(params=CASES_WITH_VIDEO, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture
def count(case):
    """A budget for each frame."""
    return min(5, frame_tokens(case) - 1)


@pytest.fixture
def short_segments(case, monkeypatch):
    """Segments of two frames."""
    monkeypatch.setattr(video, "SEGMENT_TOKENS", 2 * frame_tokens(case))


@pytest.fixture
def in_segments(request):
    if request.param:
        request.getfixturevalue("short_segments")


@PAIRS
def test_a_budget_of_all_tokens_is_the_plain_model(case, strategy, compress, in_segments, prompt):
    inputs = ask_about(case, *PROMPTS[prompt])
    plain = greedy(case.model, inputs)
    compress(case, budget=1.0, strategy=strategy)
    assert_same(greedy(case.model, inputs), plain)


@PAIRS
def test_every_step_equals_the_slow_reference(case, strategy, compress, in_segments, prompt, count):
    inputs = ask_about(case, *PROMPTS[prompt])
    handle = compress(case, budget=count, strategy=strategy)
    output = greedy(case.model, inputs, 3)
    handle.remove()
    slow, length = slow_with_videos(case)(case.model, pro=strategy == "pro"), inputs["input_ids"].shape[1]
    for step, logits in enumerate(output.logits):
        ids = output.sequences[0, : length + step].tolist()
        expected = slow.logits(ids, inputs, list(handle.report.images))
        torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_a_count_is_meant_for_each_frame_and_a_share_for_all(case, compress, count):
    handle = compress(case, budget=count)
    for budget in (count, 0.25):
        with handle.using(budget=budget) as run:
            case.model(**ask_about(case, "image", 4))
        image, film = run.report.images
        assert film.grid.frames == 4 and image.grid.frames == 1
        shares = tuple(int(one.tokens / 4 + 0.5) for one in (image, film))
        expected = shares if budget == 0.25 else (count, 4 * count)
        assert (image.tokens_per_layer[0], film.tokens_per_layer[0]) == expected


def test_segments_share_the_budget_by_their_frames(case, compress, short_segments, count):
    handle = compress(case, budget=count)
    case.model(**ask_about(case, 5))
    assert [part.grid.frames for part in handle.report.images] == [1, 2, 2]
    assert [part.tokens_per_layer[0] for part in handle.report.images] == [count, 2 * count, 2 * count]


def test_an_image_and_the_segments_of_a_video_share_a_total_and_keep_to_a_cap(case, compress, short_segments):
    handle = compress(case, budget="total:11:2")
    case.model(**ask_about(case, "image", 4))
    assert [part.grid.frames for part in handle.report.images] == [1, 2, 2]
    assert sum(part.budget for part in handle.report.images) == 11
    with handle.using(budget=1.0, max_visual_tokens=7) as run:
        case.model(**ask_about(case, "image", 4))
    assert sum(part.tokens_per_layer[0] for part in run.report.images) == 7
    assert min(len(part.kept) for part in run.report.images) >= 2


def test_words_between_frames_and_segments_stay_and_are_not_read_as_instruction(
    case, compress, short_segments, monkeypatch
):
    handle = compress(case, budget=3)
    seen = []
    reader = handle.settings.reader
    monkeypatch.setattr(reader, "read", lambda *args, read=reader.read: seen.append(read(*args)) or seen[-1])
    inputs = ask_about(case, 5)
    case.model(**inputs)
    assert {instruction.text for instruction in seen} == {QUESTION}
    visual = torch.isin(inputs["input_ids"][0], torch.tensor(family_for(case.model).visual_tokens)).nonzero()
    found = handle.report.images
    assert sum(part.tokens + part.markers for part in found) == int(visual[-1] - visual[0]) + 1


def test_a_video_never_poses_as_an_image(case, compress):
    """Equal images alone and beside a video are kept alike, whatever was encoded after them."""
    handle = compress(case, budget=3)
    case.model(**ask_about(case, "image"))
    alone = handle.report.images[0]
    greedy(case.model, ask_about(case, "image", 3), 2)
    assert torch.equal(handle.report.images[0].stages[0].kept, alone.stages[0].kept)


@pytest.mark.parametrize(
    "method", ["fastv", "sparsevlm", "dart", "divprune", "tome", "vscan", "hiprune", "flowcut", "evocut"]
)
def test_rivals_take_videos(case, compress, method):
    handle = compress(case, method=method, budget=0.5, concentration=None)
    output = greedy(case.model, ask_about(case, "image", 3), 2)
    assert torch.isfinite(step_logits(output)).all()
    assert [one.grid.frames for one in handle.report.images] == [1, 3]


def made_for_videos():
    """Each with one of the families that take videos, in turn."""
    names = [name for name, method in available_methods().items() if method.info.made_for == "video"]
    cases = [CASES_WITH_VIDEO[number % len(CASES_WITH_VIDEO)] for number in range(len(names))]
    return [pytest.param(name, case, id=f"{name}-{case.name}") for name, case in zip(names, cases, strict=True)]


@pytest.mark.parametrize(("method", "case"), made_for_videos(), indirect=["case"])
def test_methods_made_for_videos_take_images_and_segments(method, case, compress, monkeypatch):
    monkeypatch.setattr(video, "SEGMENT_TOKENS", 4 * frame_tokens(case))
    handle = compress(case, method=method, budget=0.5, concentration=None)
    output = greedy(case.model, ask_about(case, "image", 6), 2)
    assert torch.isfinite(step_logits(output)).all()
    assert [one.grid.frames for one in handle.report.images] == [1, 3, 3]
    for one in handle.report.images:
        assert abs(one.mean_tokens - one.budget) <= 0.5


def test_without_a_cache_the_video_is_known_as_well(case, strategy, compress):
    compress(case, budget=3, strategy=strategy)
    inputs = ask_about(case, "image", 3)
    assert_same(greedy(case.model, inputs, 3, use_cache=False), greedy(case.model, inputs, 3), 1e-4)


@pytest.mark.parametrize(
    "frames, tokens, expected", [(16, 256, [16]), (17, 256, [8, 9]), (3, 5000, [1, 1, 1]), (1, 9, [1])]
)
def test_segments_are_consecutive_of_about_one_length_and_not_too_long(frames, tokens, expected):
    parts = segments(frames, tokens)
    assert [len(part) for part in parts] == expected
    assert [frame for part in parts for frame in part] == list(range(frames))
