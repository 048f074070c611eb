"""An exported suite: the files that lmms-eval reads, and scores as `covist eval` computes them."""

import json
import runpy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from covist import CovistError
from covist.eval.questions import Question
from covist.eval.records import ItemAnswers
from covist.eval.statistics import accuracy, family_scores
from covist.eval.suite import Item, Suite, load_suite
from covist.eval.tally import tally
from covist.lmms.export import export_suite
from covist.lmms.scoring import mean_of_families, process_results
from covist.request.images import load_image

SUITE = load_suite("scenes")
ITEMS = SUITE.items(2)


class _Loader(yaml.SafeLoader):
    """Reads `!function utils.name` as its name, which lmms-eval looks up in the folder."""


_Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("exported") / "task"
    assert export_suite(SUITE, made, limit=2) == "covist_scenes"
    return made


def documents(folder):
    return [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]


def test_every_question_is_a_line_and_every_image_a_file(folder):
    asked = [(one["family"], one["question"], *one["answers"]) for one in documents(folder)]
    assert asked == [(one.family, one.question, one.answer) for item in ITEMS for one in item.questions]
    assert sorted(path.name for path in (folder / "images").iterdir()) == ["0000-0.png", "0001-0.png"]


def test_images_are_written_bit_for_bit(folder):
    for item in ITEMS:
        assert load_image(folder / "images" / f"{item.number:04}-0.png").tobytes() == item.image.tobytes()


def test_the_task_names_what_is_there(folder):
    task = yaml.load((folder / "covist_scenes.yaml").read_text(), _Loader)
    assert task["task"] == "covist_scenes"
    assert task["dataset_kwargs"]["data_files"]["test"] == str(folder / "questions.jsonl")
    assert [one["metric"] for one in task["metric_list"]] == [*SUITE.families, "accuracy"]
    utils = runpy.run_path(str(folder / "utils.py"))
    named = [task["doc_to_visual"], task["process_results"], task["metric_list"][-1]["aggregation"]]
    assert all(callable(utils[name.removeprefix("utils.")]) for name in named)
    (image,) = utils["doc_to_visual"](documents(folder)[0])
    assert image.tobytes() == ITEMS[0].image.tobytes()


@given(st.data())
def test_scores_are_those_of_our_own_evaluation(folder, data):
    """Whatever is answered, right or wrong, in any spelling that we forgive."""
    answers, scored, lines = {}, [], iter(documents(folder))
    for item in ITEMS:
        right = [answer for one in item.questions for answer in one.answers]
        said = [data.draw(st.sampled_from([answer, f" {answer.upper()}. ", "nothing"])) for answer in right]
        answers[item.number] = ItemAnswers(item.number, said, 0.0, 576)
        scored += [process_results(next(lines), [answer]) for answer in said]
    counted = tally(ITEMS, answers, SUITE.families)
    assert 100 * mean_of_families([one["accuracy"] for one in scored]) == pytest.approx(accuracy(counted).value)
    for family, score in zip(SUITE.families, family_scores(counted), strict=True):
        own = [one[family] for one in scored if family in one]
        assert own == [] or 100 * sum(own) / len(own) == pytest.approx(score)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(CovistError, match="there is no directory"):
        export_suite(SUITE, tmp_path / "missing" / "task")


def test_suites_of_your_own_are_exported_with_their_metrics(tmp_path):
    image = ITEMS[0].image
    asked = Question("which is red?", "B", choices=("the sky", "the car"))
    suite = Suite.of("my own", [Item.of([image, image], asked, Question("how many?", "3", family="counting"))])
    assert export_suite(suite, tmp_path / "task") == "covist_my_own"
    first, second = documents(tmp_path / "task")
    assert first["images"] == ["images/0000-0.png", "images/0000-1.png"]
    assert first["question"].startswith("which is red?\nA. the sky\nB. the car")
    assert process_results(first, ["The car."])["choice"] == 1.0
    assert process_results(second, ["4"])["counting"] == 0.0


def test_a_suite_that_lmms_eval_cannot_judge_is_refused(tmp_path):
    suite = Suite.of("mine", [Item.of(ITEMS[0].image, Question("what is this?"))])
    with pytest.raises(CovistError, match="needs the uncompressed model"):
        export_suite(suite, tmp_path / "task")
