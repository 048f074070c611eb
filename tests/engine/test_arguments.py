"""Arguments of `covist.compress`: settings of methods by name and keyword, and nothing that is silently ignored."""

import pytest
from support.llava import ask, processor
from support.matrix.qwen2_5_vl import qwen
from support.requests import greedy

import covist
from covist import CovistConfig


def test_settings_after_the_colon_and_as_keywords_mean_the_same(multi_head, clip):
    name = "divprune+csc+sca:weight_limit=64,content=off"
    handles = []
    for options in ({"method": name}, {"method": "divprune+csc+sca:content=off", "weight_limit": 64}):
        with covist.compress(multi_head, processor(), budget=12, clip=clip, **options) as handle:
            greedy(multi_head, ask("USER: <image> what color ? ASSISTANT:"), 1)
        handles.append(handle)
    by_name, by_keyword = (handle.report.images[0].stages[0] for handle in handles)
    assert by_name.weights.tolist() == by_keyword.weights.tolist() and max(by_name.weights) > 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "random", "concentration": 0.1}, "random has no concentration reference to freeze"),
        ({"method": "random", "config": CovistConfig()}, "random reads no constants of CoViST; omit config="),
        ({"method": "random", "important": 0.5}, "random has no option 'important'; it takes seed, positions"),
        ({"method": "vanilla"}, "vanilla is the uncompressed model"),
        ({"important": 0.5}, "covist-fixed has no option 'important'"),
        ({"strategy": "pro", "method": "random"}, "give either strategy= .* or method=, not both"),
        ({"config": "constants.json"}, "config constants.json cannot be read"),
        ({"budget": 0}, "budget must be"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(multi_head, options, message):
    with pytest.raises(covist.CovistError, match=message):
        covist.compress(multi_head, processor(), **options)
    assert covist.Compression.of(multi_head) is None


def test_a_clip_that_cannot_serve_the_family_is_refused(clip):
    with pytest.raises(covist.CovistError, match="qwen2.5-vl has no CLIP vision tower, so it cannot use clip="):
        covist.compress(qwen(), clip=clip)
