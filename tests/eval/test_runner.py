import json

import pytest
import torch
from support.own_method import CODE

import covist
from covist.api.setup import Setup
from covist.errors import CovistError
from covist.eval import evaluate, load_suite
from covist.eval.subject import Subject
from covist.methods import registry
from covist.plugins import Plugin
from covist.request.answer import compressed

METHODS = "covist-fixed,random:positions=keep"


def without_timings(results):
    values = results.to_dict()
    for row in values["results"]:
        del row["seconds_per_image"], row["times_mixed"]
    return values


def stored_answers(folder):
    """Everything on disk but the timings and when they were taken."""
    lines = [json.loads(line) for path in sorted((folder / "answers").iterdir()) for line in path.open()]
    return [{name: value for name, value in line.items() if name not in ("seconds", "call")} for line in lines]


class StopAfter:
    """A progress callback that interrupts before a certain image, as Ctrl-C would."""

    def __init__(self, images):
        self.images = images

    def __call__(self, done, total, description):
        if done == self.images:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(untrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return evaluate(METHODS, "24", limit=3, model=untrained, out=folder), folder


def test_vanilla_is_evaluated_once_with_all_tokens(whole):
    results, _ = whole
    assert [(score.method, score.budget.written, score.mean_tokens) for score in results.scores] == [
        ("vanilla", 576, 576),
        ("covist-fixed", 24, 24),
        ("random:positions=keep", 24, 24),
    ]


def test_answers_depend_on_the_question_and_on_the_method(whole):
    """Otherwise the other tests would compare nothing."""
    lines = stored_answers(whole[1])
    assert max(len(set(line["answers"])) for line in lines) > 2
    assert len({str(line["answers"]) for line in lines if line["image"] == 0}) == 3


def test_an_interrupted_evaluation_continues_to_the_same_results(whole, untrained, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        evaluate(METHODS, "24", limit=3, model=untrained, out=tmp_path, progress=StopAfter(7))
    assert len(stored_answers(tmp_path)) == 7
    partly = json.loads((tmp_path / "results.json").read_text())
    assert [row["method"] for row in partly["results"]] == ["vanilla", "covist-fixed"]
    seen = []
    continued = evaluate(METHODS, "24", limit=3, model=untrained, out=tmp_path, progress=lambda *at: seen.append(at))
    assert [done for done, _, _ in seen] == [7, 8, 9]
    assert without_timings(continued) == without_timings(whole[0])
    assert stored_answers(tmp_path) == stored_answers(whole[1])


def test_a_line_that_was_cut_off_is_answered_again(whole, untrained, tmp_path):
    evaluate("vanilla", "24", limit=2, model=untrained, out=tmp_path)
    path = tmp_path / "answers" / "vanilla@576.jsonl"
    path.write_text(path.read_text()[:-20])
    evaluate("vanilla", "24", limit=2, model=untrained, out=tmp_path)
    expected = [line for line in stored_answers(whole[1]) if line["method"] == "vanilla" and line["image"] < 2]
    assert stored_answers(tmp_path) == expected


def test_a_directory_can_grow_by_methods_budgets_and_images(whole, untrained, tmp_path):
    evaluate("covist-fixed", "24", limit=1, model=untrained, out=tmp_path)
    seen = []
    grown = evaluate(METHODS, "24", limit=3, model=untrained, out=tmp_path, progress=lambda *at: seen.append(at))
    assert seen[0][0] == 2
    assert without_timings(grown) == without_timings(whole[0])


def summary(folder):
    return json.loads((folder / "results.json").read_text())


def test_the_summary_covers_what_earlier_calls_have_finished(untrained, tmp_path):
    evaluate("random", "24,12", limit=2, model=untrained, out=tmp_path)
    narrower = evaluate("uniform", "24", limit=2, model=untrained, out=tmp_path)
    assert [score.method for score in narrower.scores] == ["vanilla", "uniform"]
    rows = [(row["method"], row["budget"]) for row in summary(tmp_path)["results"]]
    assert rows == [("vanilla", 576), ("uniform", 24), ("random", 24), ("random", 12)]
    assert "| random |" in (tmp_path / "results.md").read_text()


def test_answers_of_a_method_whose_file_was_changed_are_not_mixed_with_new_ones(untrained, tmp_path):
    file, out = tmp_path / "mine.py", tmp_path / "out"
    file.write_text(CODE)
    Plugin.of(str(file)).load()
    for limit in (1, 2):
        evaluate("foremost-of-all", "24", limit=limit, model=untrained, out=out)
    file.write_text(CODE.replace("range(count)", "range(1, count + 1)"))
    Plugin.of(str(file)).load()
    with pytest.raises(CovistError, match="of foremost-of-all from before its code was changed") as refused:
        evaluate("random,foremost-of-all", "24", limit=3, model=untrained, out=out)
    (stale,) = (out / "answers").glob("foremost*")
    assert str(stale) in str(refused.value)
    stale.unlink()
    again = evaluate("foremost-of-all", "24", limit=3, model=untrained, out=out)
    assert [score.method for score in again.scores] == ["vanilla", "foremost-of-all"]


def test_the_summary_leaves_out_methods_that_are_registered_elsewhere(untrained, tmp_path, monkeypatch):
    known = covist.available_methods()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(registry, "_METHODS", {**known, "uniform-again": known["uniform"]})
        evaluate("uniform-again", "24", limit=1, model=untrained, out=tmp_path)
    with pytest.warns(UserWarning, match="not known here are left out of the summary: uniform-again$"):
        evaluate("random", "24", limit=1, model=untrained, out=tmp_path)
    assert [row["method"] for row in summary(tmp_path)["results"]] == ["vanilla", "random"]


def test_fewer_images_leave_the_summary_alone(untrained, tmp_path):
    evaluate("random", "24", limit=2, model=untrained, out=tmp_path)
    names = ("results.json", "results.md", "retention.png")
    before = [(tmp_path / name).read_bytes() for name in names]
    with pytest.warns(UserWarning, match="cover 2 images and are not replaced; this evaluation has only 1"):
        narrower = evaluate("random,uniform", "24", limit=1, model=untrained, out=tmp_path)
    assert narrower.images == 1 and len(narrower.scores) == 3
    assert [(tmp_path / name).read_bytes() for name in names] == before
    evaluate("uniform", "24", limit=2, model=untrained, out=tmp_path)
    assert [row["method"] for row in summary(tmp_path)["results"]] == ["vanilla", "uniform", "random"]


@pytest.mark.parametrize("content", ["[]", '{"images": null}', '{"images": "many"}', "[[["])
def test_a_damaged_summary_is_replaced(untrained, tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    evaluate("random", "24", limit=1, model=untrained, out=tmp_path)
    assert summary(tmp_path)["images"] == 1


def test_times_of_one_call_are_compared_and_others_marked(untrained, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        evaluate("random,uniform", "24", limit=2, model=untrained, out=tmp_path, progress=StopAfter(3))
    continued = evaluate("random,uniform", "24", limit=2, model=untrained, out=tmp_path)
    mixed = {score.method: score.times_mixed for score in continued.scores}
    assert mixed == {"vanilla": False, "random": True, "uniform": True}
    assert [row["times_mixed"] for row in summary(tmp_path)["results"]] == [False, True, True]
    assert (tmp_path / "results.md").read_text().count("* |") == 2
    at_once = evaluate("random,uniform", "24", limit=2, model=untrained)
    assert not any(score.times_mixed for score in at_once.scores)


def test_a_share_is_a_budget(untrained):
    results = evaluate("random", "10%", limit=1, model=untrained)
    assert [(score.budget.written, score.mean_tokens) for score in results.scores] == [(576, 576), (58, 58)]


def test_a_total_is_a_budget_and_its_images_say_what_they_got(untrained):
    results = evaluate("random", "total:48,10%", limit=1, model=untrained)
    assert [(score.budget.written, score.mean_tokens) for score in results.scores[1:]] == [("total:48", 48), (58, 58)]
    assert "total:48" in results.to_markdown()


def test_a_budget_that_cannot_be_reached_is_marked_and_not_ranked(untrained, tmp_path):
    results = evaluate("covist-fixed,fastv", "64,200", limit=1, model=untrained, out=tmp_path)
    reached = {(score.method, score.budget.written): score.reached for score in results.scores}
    assert [run for run, value in reached.items() if not value] == [("fastv", 64)]
    assert [(one.method, one.budget.written) for one in results.differences] == [("fastv", 200)]
    rows = {(row["method"], row["budget"]): row["reached"] for row in summary(tmp_path)["results"]}
    assert rows == reached
    table = (tmp_path / "results.md").read_text()
    assert "| fastv | 64, not reachable | 144.8 |" in table and "| not reachable; at 144.8 tokens: " in table


def test_a_changed_setting_is_refused(whole, untrained):
    _, folder = whole
    with pytest.raises(ValueError, match="holds answers with seed=0, not 1; choose another directory"):
        evaluate(METHODS, "24", limit=1, model=untrained, out=folder, seed=1)


def test_another_model_is_refused(whole, untrained):
    model, processor, clip = untrained
    weight = model.lm_head.weight
    former = weight.detach().clone()
    try:
        with torch.no_grad():
            weight[0, 0] += 1
        with pytest.raises(ValueError, match="holds answers with model="):
            evaluate("vanilla", "24", limit=1, model=(model, processor, clip), out=whole[1])
    finally:
        with torch.no_grad():
            weight.copy_(former)


def test_the_directory_stores_the_settings_its_answers_depend_on(whole):
    settings = json.loads((whole[1] / "settings.json").read_text())
    assert settings["covist"] == covist.__version__
    assert settings["dtype"] == "float32" and settings["attention"] == "sdpa"
    assert settings["clip"].startswith("CLIPModel-")
    assert {"layout", "suite", "suite_version", "model", "seed", "concentration"} <= set(settings)


def test_another_clip_is_refused(whole, untrained):
    with pytest.raises(CovistError, match="holds answers with clip='CLIPModel-.*', not 'none'"):
        evaluate("vanilla", "24", limit=1, model=untrained[:2], out=whole[1])


def test_another_attention_backend_is_refused(whole, untrained):
    model = untrained[0]
    model.set_attn_implementation({"text_config": "eager"})
    try:
        with pytest.raises(CovistError, match="holds answers with attention='sdpa', not 'eager'"):
            evaluate("vanilla", "24", limit=1, model=untrained, out=whole[1])
    finally:
        model.set_attn_implementation({"text_config": "sdpa"})


@pytest.mark.parametrize(("setting", "value"), [("dtype", "bfloat16"), ("covist", "0.0.1")])
def test_another_dtype_or_version_is_refused(untrained, tmp_path, setting, value):
    evaluate("vanilla", "24", limit=1, model=untrained, out=tmp_path)
    stored = json.loads((tmp_path / "settings.json").read_text())
    (tmp_path / "settings.json").write_text(json.dumps({**stored, setting: value}))
    with pytest.raises(CovistError, match=f"holds answers with {setting}='{value}'"):
        evaluate("vanilla", "24", limit=1, model=untrained, out=tmp_path)


def test_a_directory_of_another_layout_is_refused_in_one_line(untrained, tmp_path):
    (tmp_path / "settings.json").write_text('{"suite": "scenes", "seed": 0}')
    with pytest.raises(CovistError, match="written by another version of covist; choose another directory") as caught:
        evaluate("vanilla", "24", limit=1, model=untrained, out=tmp_path)
    assert "\n" not in str(caught.value)


def test_without_a_directory_nothing_is_written(whole, untrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = evaluate(["covist-fixed"], [24], limit=2, model=untrained)
    assert not list(tmp_path.iterdir())
    assert [score.method for score in results.scores] == ["vanilla", "covist-fixed"]


def test_a_directory_that_cannot_be_written_is_one_line(untrained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write to .*file"):
        evaluate("vanilla", "24", limit=1, model=untrained, out=tmp_path / "file")


@pytest.mark.parametrize(
    ("methods", "budgets", "message"),
    [
        ("covist-fixed", "0", "budget must be a positive number"),
        ("covist-fixed", "abc", "budget must be a positive number"),
        ("covist-fixed", "", "no budget given"),
        ("", "64", "no method given"),
        ("nonsense", "64", "unknown method 'nonsense'"),
    ],
)
def test_bad_requests_are_refused_with_one_line(untrained, methods, budgets, message):
    with pytest.raises(ValueError, match=message) as caught:
        evaluate(methods, budgets, limit=1, model=untrained)
    assert "\n" not in str(caught.value)


def test_a_batch_with_a_shared_image_answers_like_single_requests(untrained):
    model, processor, clip = untrained
    subject, item = Subject.resolve(untrained), load_suite("scenes").item(1)
    for name in ("vanilla", "covist-fixed"):
        with compressed(subject.loaded, Setup(name, 24, 0.2)):
            together = subject.answer(item).texts
            for question, answer in zip(item.questions, together, strict=True):
                prompt = f"USER: <image>\n{question.question} ASSISTANT:"
                inputs = processor(text=prompt, images=item.image, return_tensors="pt")
                output = model.generate(**inputs, max_new_tokens=2, do_sample=False)
                alone = processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
                assert alone == [answer]


@pytest.mark.parametrize("setting", ["content=off", "attention=off", "content=off,attention=off"])
def test_interventions_keep_the_representatives_of_the_main_configuration(untrained, setting):
    subject, item = Subject.resolve(untrained), load_suite("scenes").item(0)
    kept = []
    for name in ("covist-fixed", f"covist-fixed:{setting}"):
        with compressed(subject.loaded, Setup(name, 24, 0.2)) as handle:
            subject.answer(item)
            kept.append([image.stages[0].indices.tolist() for image in handle.report.images])
    assert kept[0] == kept[1]


def test_auto_refuses_a_method_that_does_not_measure_coverage(untrained):
    with pytest.raises(CovistError, match="random does not measure coverage"):
        evaluate("random", "auto", limit=1, model=untrained)
