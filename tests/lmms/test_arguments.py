"""`--model_args`: what lmms-eval hands over becomes a checked description of a model and a method."""

import pytest

from covist import CovistConfig, CovistError, Setup
from covist.api.choose import CallSettings
from covist.lmms.arguments import Arguments


def method_of(**given):
    """The method of some arguments, as it is built when a model is there."""
    setup = Arguments.of({"pretrained": "tiny", **given}).setup
    return CallSettings().build_method(setup)


def test_the_command_of_the_paper_is_understood():
    given = {"pretrained": "llava-hf/llava-1.5-7b-hf", "budget": 64, "strategy": "pro", "clip": "openai/clip"}
    arguments = Arguments.of(given)
    assert str(arguments.setup) == "covist-pro 64"
    assert not arguments.setup.is_plain and arguments.batch_size == 1


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("divprune+csc+sca", "divprune+csc+sca"),
        ("vispruner:important=0.75;positions=keep", "vispruner"),
        ("covist-row-c", "covist-fixed"),
    ],
)
def test_every_method_can_be_named(name, made):
    assert method_of(method=name).name == made


def test_settings_of_a_method_stand_between_semicolons():
    method = method_of(method="vispruner:important=0.75;positions=keep")
    assert (method.important, method.positions) == (0.75, "keep")


@pytest.mark.parametrize("given", [{"budget": "none"}, {"method": "vanilla"}])
def test_the_reference_is_the_plain_model(given):
    assert Arguments.of({"pretrained": "tiny", **given}).setup.is_plain


def test_constants_come_from_a_file(tmp_path):
    path = tmp_path / "covist.json"
    CovistConfig(weight_limit=64).save(path)
    method = method_of(config=str(path))
    assert method.config.weight_limit == 64


def test_a_name_of_digits_stays_a_name():
    assert Arguments.of({"pretrained": 123}).pretrained == "123"


def test_numbers_may_be_text():
    assert Arguments.of({"pretrained": "tiny", "batch_size": "8"}).batch_size == 8


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"budgit": 64}, "no model argument 'budgit'"),
        ({"batch_size": "auto"}, "batch_size must be a whole number of at least 1, got 'auto'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"frames": 1.5}, "frames must be a whole number of at least 1"),
        ({"budget": "many"}, "budget"),
        ({"method": "nonsense"}, "unknown method 'nonsense'"),
        ({"method": "random", "strategy": "pro"}, "not both"),
        ({"strategy": "slow"}, "choose 'fixed' or 'pro'"),
        ({"concentration": "high"}, "concentration must be a number in"),
        ({"concentration": 2}, "concentration must be a number in"),
        ({"method": "random", "concentration": 0.1}, "omit concentration="),
        ({"config": "nowhere.json"}, "config nowhere.json cannot be read"),
    ],
)
def test_impossible_arguments_are_refused_in_one_line(given, complaint):
    with pytest.raises(CovistError, match=complaint) as refused:
        Arguments.of({"pretrained": "tiny", **given})
    assert "\n" not in str(refused.value)


def test_a_model_must_be_named():
    with pytest.raises(CovistError, match="pretrained="):
        Arguments.of({"budget": 64})


def test_a_damaged_file_of_constants_is_named(tmp_path):
    path = tmp_path / "covist.json"
    path.write_text("{")
    with pytest.raises(CovistError, match="covist.json"):
        Arguments.of({"pretrained": "tiny", "config": str(path)})


def test_arguments_override_the_file_of_tune(tmp_path):
    path = str(tmp_path / "covist.json")
    Setup(method="covist-pro", budget=96, concentration=0.2).save(path)
    told = Arguments.of({"pretrained": "tiny", "config": path}).setup
    assert told == Setup("covist-pro", 96, 0.2)
    changed = Arguments.of({"pretrained": "tiny", "config": path, "strategy": "fixed", "budget": "32"}).setup
    assert changed == Setup("covist-fixed", 32, 0.2)


def test_a_strategy_overrides_a_file_that_compresses_nothing(tmp_path):
    path = str(tmp_path / "covist.json")
    Setup(method="vanilla").save(path)
    assert Arguments.of({"pretrained": "tiny", "config": path}).setup.is_plain
    assert not Arguments.of({"pretrained": "tiny", "config": path, "strategy": "pro"}).setup.is_plain


@pytest.mark.parametrize(
    ("given", "running", "frozen"), [(None, False, 0.2), ("running", True, None), (0.3, False, 0.3)]
)
def test_the_concentration_reference_is_given_running_or_left_to_the_file(given, running, frozen, tmp_path):
    path = str(tmp_path / "covist.json")
    Setup(concentration=0.2).save(path)
    arguments = Arguments.of({"pretrained": "tiny", "config": path, "concentration": given})
    assert (arguments.is_running, arguments.setup.concentration) == (running, frozen)


def test_a_prompt_may_have_a_budget_and_a_cap():
    arguments = Arguments.of({"pretrained": "tiny", "budget": "total:2048", "max_visual_tokens": "4096"})
    assert (str(arguments.setup.budget), arguments.setup.max_visual_tokens) == ("total:2048", 4096)
    for wrong, words in (({"max_visual_tokens": "0"}, "max_visual_tokens must be"), ({"budget": "ages:8"}, "one turn")):
        with pytest.raises(CovistError, match=words):
            Arguments.of({"pretrained": "tiny", **wrong})


def test_a_budget_may_follow_the_image():
    arguments = Arguments.of({"pretrained": "tiny", "budget": "auto:0.9", "min_coverage": 0.8})
    assert (str(arguments.setup.budget), arguments.setup.min_coverage) == ("auto:0.9", 0.8)
    with pytest.raises(CovistError, match="divprune does not measure coverage"):
        Arguments.of({"pretrained": "tiny", "budget": "auto", "method": "divprune"})
