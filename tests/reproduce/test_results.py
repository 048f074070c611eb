"""Reading lmms-eval's files: what counts, what is refused by name, and what is not looked at."""

from __future__ import annotations

import json
import math

import pytest
from support.lmms_outputs import DATE, METRICS, write_results

from covist.reproduce.paper import load_table
from covist.reproduce.results import read_run
from covist.reproduce.retention import pope_f1
from covist.reproduce.runs import LmmsRun, Settings

RUN = LmmsRun("llava-1.5-7b", "covist-pro", 64)
TASKS = load_table("main").tasks


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(results=tmp_path)


def read(settings, tasks=TASKS, run=RUN):
    return read_run(settings.folder(run), tasks, settings.arguments(run), settings.limit)


def test_every_score_comes_in_the_papers_unit(settings):
    write_results(settings, RUN)
    found = read(settings, [*TASKS, "mme_p"])
    assert found.problems == ()
    assert found.scores == pytest.approx(
        {"gqa": 60, "mmb": 64, "mme": 1850, "mme_p": 1500, "pope": 85, "sqa": 70, "textvqa": 58, "vqav2": 76}
    )


def test_a_run_without_files_has_no_scores_and_no_problems(settings):
    assert read(settings) == read_run(settings.results / "nowhere", TASKS, {}, None)
    assert not read(settings).scores and not read(settings).problems


def test_results_of_several_runs_add_up_and_the_newest_counts(settings):
    write_results(settings, RUN, {"gqa": {"exact_match": 0.5}, "mme": METRICS["mme"]}, "20261115_120000")
    write_results(settings, RUN, {"gqa": {"exact_match": 0.6}}, "20261116_120000")
    assert read(settings).scores == pytest.approx({"gqa": 60, "mme": 1850})


def test_mmbench_without_a_key_is_read_as_well(settings):
    write_results(settings, RUN, {"mmbench_en_dev_static": {"gpt_eval_score": 63.5}})
    assert read(settings).scores == {"mmb": 63.5}


def test_plain_textvqa_is_not_taken_for_the_one_with_ocr_tokens(settings):
    write_results(settings, RUN, {"textvqa_val": {"exact_match": 0.46}})
    assert "textvqa" not in read(settings).scores


def test_submissions_that_end_alike_are_not_results(settings):
    write_results(settings, RUN)
    folder = settings.folder(RUN) / "submissions"
    folder.mkdir()
    (folder / "mmbench_en_dev_results.json").write_text('{"overall_acc": 0.64}')
    assert read(settings).problems == ()


def pope_line(prediction: str, truth: str) -> str:
    judged = {"question_id": "1", "score": float(prediction == truth), "prediction": prediction, "ground_truth": truth}
    return json.dumps({"doc_id": 0, "target": truth, "filtered_resps": prediction, "pope_f1_score": judged}) + "\n"


SPLITS = {
    "pope_adv": [("yes", "yes"), ("yes", "no"), ("yes", "no")],
    "pope_pop": [("yes", "yes"), ("no", "yes")],
    "pope_random": [("yes", "yes"), ("no", "no"), ("perhaps", "yes")],
}


def test_three_splits_of_pope_are_scored_together(settings):
    path = write_results(settings, RUN, {split: {"pope_f1_score": 0.5} for split in SPLITS})
    for split, pairs in SPLITS.items():
        samples = path.with_name(f"{DATE}_samples_{split}.jsonl")
        samples.write_text("".join(pope_line(*pair) for pair in pairs))
    together = [pair for pairs in SPLITS.values() for pair in pairs]
    assert read(settings).scores["pope"] == pope_f1(together) != pytest.approx(50)


@pytest.mark.parametrize("content", [None, '{"doc_id": 0}\n', pope_line("yes", "yes")[:-9]])
def test_splits_of_pope_without_whole_samples_are_reported(settings, content):
    path = write_results(settings, RUN, {split: {"pope_f1_score": 0.5} for split in SPLITS})
    for split in SPLITS if content else ():
        path.with_name(f"{DATE}_samples_{split}.jsonl").write_text(content)
    found = read(settings)
    assert "pope" not in found.scores
    assert found.problems == (
        f"{path}: POPE needs complete samples of pope_adv in {DATE}_samples_pope_adv.jsonl: run with --log_samples",
    )


@pytest.mark.parametrize(
    "content, said",
    [
        ("", "is incomplete JSON; its run was interrupted"),
        ('{"results": {"gqa": {"exact_mat', "is incomplete JSON; its run was interrupted"),
        ("[]", "is not a results file of lmms-eval"),
        ('{"results": {}}', "is not a results file of lmms-eval"),
        ('{"results": {"gqa": 3}, "config": {}}', "is not a results file of lmms-eval"),
    ],
)
def test_a_broken_file_is_named_and_hides_no_other(settings, content, said):
    path = write_results(settings, RUN, date="20261115_120000")
    broken = path.with_name("20261116_120000_results.json")
    broken.write_text(content)
    found = read(settings)
    assert found.problems == (f"{broken}: {said}",)
    assert set(found.scores) == set(TASKS)


def test_a_file_that_is_not_text_is_named(settings):
    path = write_results(settings, RUN)
    path.write_bytes(b"\xff\xfe\x00broken")
    assert f"{path}: cannot be read" in read(settings).problems[0]


@pytest.mark.parametrize("value", ["N/A", None, True, math.nan])
def test_a_task_without_its_figure_is_named_and_counts_as_missing(settings, value):
    path = write_results(settings, RUN, {**METRICS, "pope": {"pope_f1_score": value}})
    found = read(settings)
    assert set(found.scores) == set(TASKS) - {"pope"}
    (problem,) = found.problems
    assert problem.startswith(f"{path}: ") and "pope_f1_score of pope" in problem


@pytest.mark.parametrize(
    "other, said",
    [
        (LmmsRun("llava-1.5-7b", "covist-pro", 128), "was made with budget=128, not budget=64"),
        (LmmsRun("llava-1.5-7b", "divprune", 64), "was made with strategy=nothing, not strategy=pro"),
        (LmmsRun("llava-1.5-7b", "covist-fixed", 64), "was made with strategy=fixed, not strategy=pro"),
        (
            LmmsRun("llava-1.5-13b", "covist-pro", 64),
            "was made with pretrained=llava-hf/llava-1.5-13b-hf, not pretrained=",
        ),
    ],
)
def test_results_of_another_run_do_not_count(settings, other, said):
    path = write_results(settings, other)
    target = settings.folder(RUN) / "model"
    target.mkdir(parents=True)
    found_there = path.rename(target / path.name)
    found = read(settings)
    assert not found.scores
    assert found.problems[0].startswith(f"{found_there}: {said}")


def test_results_over_other_questions_do_not_count(tmp_path):
    limited, whole = Settings(results=tmp_path, limit=8), Settings(results=tmp_path)
    path = write_results(limited, RUN)
    assert read(limited).scores and not read(whole).scores
    moved = whole.folder(RUN) / "model" / path.name
    moved.parent.mkdir(parents=True)
    path.rename(moved)
    assert read(whole).problems == (f"{moved}: was made with limit 8.0, not none",)


def test_a_run_of_the_default_strategy_need_not_name_it(settings):
    fixed = LmmsRun("tiny", "covist-fixed", 64)
    path = write_results(settings, fixed, {"covist_scenes": {"color": 1.0}})
    path.write_text(path.read_text().replace(",strategy=fixed", ""))
    assert read(settings, ["scenes:color"], fixed).scores == {"scenes:color": 100.0}
