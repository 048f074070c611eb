"""`tune` on a model: what it answers, what it saves, and that it shares answers with `evaluate`."""

import json
import re
from dataclasses import replace

import pytest
from PIL import Image

from covist import Setup
from covist.budget import Count, Share
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.eval import Item, Question, Suite, evaluate, load_suite, tune
from covist.eval.racing import Verdict

BUDGETS = "576,64,8"


@pytest.fixture(scope="module")
def suite():
    """Held-out scenes without their answers: an untrained model agrees with itself at all tokens."""
    scenes = load_suite("scenes").items(18)
    asked = [[Question(question.question) for question in item.questions[:2]] for item in scenes]
    return Suite.of("own", [Item.of(item.image, *own) for item, own in zip(scenes, asked, strict=True)])


@pytest.fixture(scope="module")
def tuned(suite, untrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    return tune(80, suite=suite, budgets=BUDGETS, model=untrained, max_new_tokens=3, out=folder), folder


def test_budgets_are_tried_from_the_largest_down_to_the_first_that_fails(tuned):
    found, _ = tuned
    assert [(str(tried.budget), tried.verdict) for tried in found.curve] == [
        ("576", Verdict.PASSES),
        ("64", Verdict.FAILS),
    ]
    assert found.measure == "agreement"
    assert found.curve[0].retention == 100 > found.curve[1].retention
    assert found.answered <= found.exhaustive == 4 * 18


def test_the_setup_holds_everything_the_answers_depend_on(tuned):
    found, folder = tuned
    settings = json.loads((folder / "settings.json").read_text())
    assert str(found.setup) == "covist-fixed 576"
    assert found.setup.concentration == settings["concentration"] > 0
    assert found.setup.origin["suite_version"] == settings["suite_version"]
    assert {"keep", "confidence", "model", "versions", "items"} <= set(found.setup.origin)
    assert found.report.tokens == 576


def test_what_is_printed_is_the_table_of_the_command_and_the_choice(tuned):
    title, _, head, _, first, second, _, chosen = repr(tuned[0]).splitlines()
    assert title == "own: keep 80 % with 95 % confidence" and chosen == "covist-fixed at a budget of 576"
    assert head.split() == ["method", "K", "images", "agreement", "between", "verdict"]
    assert (first.split()[:2], second.split()[-1]) == (["covist-fixed", "576"], "fails")


def stored_lines(folder):
    return sum(len(path.read_text().splitlines()) for path in (folder / "answers").iterdir())


def test_answers_are_shared_with_an_evaluation(tuned, suite, untrained):
    _, folder = tuned
    options = {"suite": suite, "model": untrained, "max_new_tokens": 3, "out": folder}
    before = stored_lines(folder)
    tune(80, budgets=BUDGETS, **options)
    assert stored_lines(folder) == before > 0, "something was answered again"
    evaluate("covist-fixed", "576,64", **options)
    assert stored_lines(folder) == 3 * 18


def test_a_family_without_a_right_answer_is_named(untrained, suite):
    """An untrained model does not say what is asked for."""
    items = [
        Item.of(item.image, replace(item.questions[0], family="agree"), Question("?", "xyz", family="never"))
        for item in suite.items(16)
    ]
    found = tune(60, suite=Suite.of("own", items), budgets="576", model=untrained, max_new_tokens=1)
    assert found.unknown == ("never",) and found.setup is None
    assert found.curve[0].retention == 100 and found.curve[0].interval[0] < 50
    assert found.to_dict()["unknown"] == ["never"]


def test_when_no_budget_suffices_nothing_is_chosen(suite, untrained):
    found = tune(80, suite=suite, budgets="8,4", model=untrained, max_new_tokens=3, limit=16)
    assert found.setup is None and found.report is None
    assert [str(tried.budget) for tried in found.curve] == ["8"]
    assert found.best_bound > 80
    assert found.to_dict()["chosen"] is None and repr(found).endswith("\n\nno budget suffices")


@pytest.mark.parametrize(
    ("keep", "methods", "limit", "says"),
    [
        (
            99,
            "covist-fixed",
            None,
            "18 images can show at most 83.6 %, even if no answer changes; give about 330 images",
        ),
        (75, "covist-fixed", 8, "8 images can show at most 66.8 %"),
        (83, "covist-fixed,uniform", None, "18 images can show at most 80.4 %"),  # two methods share the error
    ],
)
def test_data_that_cannot_suffice_are_refused_before_a_model_is_touched(suite, keep, methods, limit, says):
    with pytest.raises(CovistError, match=re.escape(says)):
        tune(keep, suite=suite, methods=methods, limit=limit, model="nowhere/nothing")


def test_the_scarcest_family_is_named():
    image = Image.new("RGB", (8, 8))
    kinds = ["what"] * 60 + ["counting"] * 5
    items = [Item.of(image, Question("?", "yes", family=kind)) for kind in kinds]
    with pytest.raises(CovistError, match=r"65 images \(5 with questions of the family counting\) can show at most 76"):
        tune(90, suite=Suite.of("own", items), model="nowhere/nothing")


def test_the_method_with_the_smallest_budget_wins(suite, untrained):
    """The uncompressed model in disguise passes at any budget that it calls all tokens."""
    methods = "covist-fixed,uniform"
    found = tune(50, suite=suite, methods=methods, budgets="576,400", model=untrained, max_new_tokens=1, limit=16)
    passed = [tried for tried in found.curve if tried.verdict is Verdict.PASSES]
    assert {tried.method for tried in passed} == {"covist-fixed", "uniform"}
    assert found.setup.budget.tokens == min(tried.budget.tokens for tried in passed)
    if found.setup.method == "uniform":
        assert found.setup.concentration is None


def test_constants_are_used_and_saved(suite, untrained):
    constants = CovistConfig(weight_limit=64)
    options = {"suite": suite, "model": untrained, "max_new_tokens": 1, "limit": 16}
    found = tune(50, budgets="576", config=Setup(constants=constants, concentration=0.25), **options)
    assert (found.setup.constants, found.setup.concentration) == (constants, 0.25)


def test_a_largest_budget_leaves_out_what_is_above_it(suite, untrained):
    options = {"suite": suite, "model": untrained, "max_new_tokens": 1, "limit": 5}
    assert tune(50, budgets="576,8,4", max_budget=8, **options).curve[0].budget == Count(8)
    assert tune(50, max_budget=70, **options).curve[0].budget == Share(0.111)
    assert tune(50, budgets="576,64,8", max_budget="12%", **options).curve[0].budget == Count(64)
    with pytest.raises(CovistError, match="no budget is at most 2"):
        tune(50, budgets="8,4", max_budget=2, **options)


def test_there_must_be_a_method_that_compresses(suite, untrained):
    with pytest.raises(CovistError, match="no method to tune"):
        tune(50, suite=suite, methods="vanilla", model=untrained)


@pytest.mark.parametrize("keep", [0, 100, 101, -5, True, "99"])
def test_a_share_that_no_sample_can_show_is_refused(keep):
    with pytest.raises(CovistError, match="keep must be a percentage above 0 and below 100"):
        tune(keep)
