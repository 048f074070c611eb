"""What "covist" in --hf-overrides may say: every setting arrives, and every refusal is one line."""

import sys
from pathlib import Path

import pytest

from covist.budget import Count, Share
from covist.errors import CovistError
from covist.methods.registry import available_methods
from covist.plugins import Plugin
from covist.vllm.settings import BY_EMBEDDINGS, WITHOUT_WEIGHTS, Serving, read_budget, require_readable

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_budget_is_enough():
    serving = Serving.read({"budget": 64})
    assert (serving.method.name, serving.budget) == ("covist-fixed", Count(64))
    assert (serving.instruction, serving.clip, serving.columns) == (False, None, None)


def test_all_settings_are_read():
    serving = Serving.read(
        {
            "budget": "11%",
            "method": "covist-fixed:content=off",
            "constants": {"weight_limit": 64},
            "concentration": 0.25,
            "instruction": True,
            "clip": "somewhere",
            "columns": 32,
        }
    )
    assert serving.method.config.weight_limit == 64 and not serving.method.config.content
    assert serving.method.tracker.read() == 0.25
    assert (serving.budget, serving.instruction, serving.clip, serving.columns) == (Share(0.11), True, "somewhere", 32)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, "--hf-overrides needs"),
        ([64], "--hf-overrides needs"),
        ({}, "no budget"),
        ({"budget": 0}, "budget"),
        ({"budget": "many"}, "budget"),
        ({"budget": "auto"}, "fixes the prompt's length"),
        ({"budget": "auto:0.9:16:192"}, "fixes the prompt's length"),
        ({"budget": "total:2048"}, "fixes the prompt's length"),
        ({"budget": "ages:256,128"}, "fixes the prompt's length"),
        ({"budget": 64, "min_coverage": 0.9}, "min_coverage is not possible"),
        ({"budget": 64, "max_visual_tokens": 512}, "max_visual_tokens is not possible"),
        ({"budget": 64, "bugdet": 32}, "unknown setting bugdet"),
        ({"budget": 64, "constants": {"nonsense": 1}}, "unknown field nonsense"),
        ({"budget": 64, "concentration": 2}, "concentration must be"),
        ({"budget": 64, "method": "nonsense"}, "nonsense"),
        ({"budget": 64, "method": "vanilla"}, "vanilla"),
        ({"budget": 64, "method": "covist-pro"}, "removes tokens inside the decoder"),
        ({"budget": 64, "method": "fastv"}, "removes tokens inside the decoder"),
        ({"budget": 64, "method": "ivc-prune"}, "removes tokens inside the decoder"),
        ({"budget": 64, "method": "restore-divprune"}, "biases prefill and decoding differently"),
        ({"budget": 64, "instruction": "yes"}, "instruction='yes'"),
        ({"budget": 64, "instruction": True, "clip": 3}, "clip=3"),
        ({"budget": 64, "clip": "somewhere"}, "clip needs the instruction"),
        ({"budget": 64, "columns": "8"}, "columns='8'"),
        ({"budget": 64, "columns": True}, "columns=True"),
        ({"budget": 64, "columns": 12}, "multiple of 8"),
        ({"budget": 64, "columns": 0}, "multiple of 8"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_in_one_line(values, words):
    with pytest.raises(CovistError, match=words) as refused:
        Serving.read(values)
    assert "\n" not in str(refused.value)


def test_every_method_is_served_or_refused_with_a_reason():
    refused = {}
    for name in available_methods():
        try:
            Serving.read({"budget": 64, "method": name})
        except CovistError as error:
            refused[name] = str(error)
    assert {"covist-pro", "fastv", "sparsevlm", "pyramiddrop", "restore-divprune"} <= set(refused)
    assert {"covist-fixed", "covist-max", "divprune", "visionzip", "tome"} & set(refused) == set()
    reasons = ("inside the decoder", "differently", "before the vision tower")
    assert all(any(reason in line for reason in reasons) for line in refused.values())


def test_without_a_reference_every_image_counts_as_average_however_many_were_seen():
    tracker = Serving.read({"budget": 64}).method.tracker
    assert tracker.warm_up == sys.maxsize
    for _ in range(100):
        tracker.update(0.9)
    assert tracker.read() is None


def test_a_frozen_reference_does_not_change():
    tracker = Serving.read({"budget": 64, "concentration": 0.25}).method.tracker
    for _ in range(100):
        tracker.update(0.9)
    assert tracker.read() == 0.25


def test_methods_that_read_embeddings_alone_serve_every_model():
    served = []
    for name in (*available_methods(), BY_EMBEDDINGS, WITHOUT_WEIGHTS, "divprune+sca"):
        try:
            require_readable(Serving.read({"budget": 64, "method": name}), "GlmForImages", tower_is_read=False)
            served.append(name)
        except CovistError as error:
            assert "\n" not in str(error)
    assert served == ["divprune", "g-prune", "otprune", "random", "tome", BY_EMBEDDINGS, WITHOUT_WEIGHTS]


def test_a_method_of_ones_own_that_reads_layers_of_the_tower_is_refused_where_none_is_read():
    Plugin.of(str(EXAMPLES / "plugin" / "covist_loudest.py")).load()
    require_readable(Serving.read({"budget": 64, "method": "loudest"}), "GlmForImages", tower_is_read=False)
    with pytest.raises(CovistError, match="growing reads the vision tower"):
        require_readable(Serving.read({"budget": 64, "method": "growing"}), "GlmForImages", tower_is_read=False)


def test_the_question_needs_a_tower_that_is_read():
    serving = Serving.read({"budget": 64, "method": BY_EMBEDDINGS, "instruction": True})
    require_readable(serving, "LlavaForConditionalGeneration", tower_is_read=True)
    with pytest.raises(CovistError, match="in GlmForImages the question cannot take part"):
        require_readable(serving, "GlmForImages", tower_is_read=False)


def test_only_without_weights_nothing_is_added_to_attention():
    assert Serving.read({"budget": 64, "method": BY_EMBEDDINGS}).biases
    assert not Serving.read({"budget": 64, "method": WITHOUT_WEIGHTS}).biases


def test_the_budget_of_a_request_is_taken_out_of_its_options():
    assert read_budget({"covist_budget": 48, "num_crops": 4}) == (Count(48), {"num_crops": 4})
    assert read_budget({"num_crops": 4}) == (None, {"num_crops": 4})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"covist_budget": "auto"}, "fixes the prompt's length"),
        ({"covist_budget": -1}, "budget"),
        ({"use_audio_in_video": True}, "sound and video overlap"),
        ({"covist_method": "divprune"}, "unknown option covist_method; covist has only covist_budget"),
    ],
)
def test_wrong_options_of_a_request_are_refused(options, words):
    with pytest.raises(CovistError, match=words):
        read_budget(options)
