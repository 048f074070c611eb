"""Questions from a file: what a line may say, and what is said about a bad one before any work."""

import json

import numpy as np
import pytest
from PIL import Image
from support.cases import first_of
from support.films import moving_square, write_folder

from covist.errors import CovistError
from covist.eval import Item, Question, Suite, evaluate, read_data
from covist.eval.data import KEYS
from covist.eval.subject import Subject
from covist.request.loading import load_model


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 255, (96, 128, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((112, 84)).save(tmp_path / f"{number}.png")
    write_folder(tmp_path / "film", moving_square(6))
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.png").write_text("no image")
    return tmp_path


def write(folder, *rows):
    path = folder / "mine.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_every_field_arrives(folder):
    row = {
        "images": ["0.png", "1.png"],
        "video": "film",
        "question": "which?",
        "answers": ["B", "C"],
        "choices": ["red", "blue", "green"],
        "family": "colours",
        "id": 7,
    }
    suite = read_data(write(folder, row), frames=4)
    (item,) = suite.items()
    first, second, film = item.shown
    assert (first.size, second.size, len(film.frames)) == ((112, 84), (112, 84), 4)
    (question,) = item.questions
    assert question == Question("which?", ("B", "C"), "choice", "colours", ("red", "blue", "green"))
    assert (suite.name, suite.families, suite.size, suite.unit) == ("mine", ("colours",), 1, "item")


def test_lines_about_the_same_images_are_one_item(folder):
    one, other = {"image": "0.png"}, {"image": "1.png"}
    lines = [{**one, "question": "a"}, {**other, "question": "b"}, "", {**one, "question": "c"}]
    suite = read_data(write(folder, *lines))
    assert [[question.question for question in item.questions] for item in suite.items()] == [["a", "c"], ["b"]]
    assert suite.unit == "image"


def test_a_number_is_an_answer_and_a_metric_may_be_given_per_line(folder):
    rows = [
        {"image": "0.png", "question": "how many?", "answer": 3},
        {"image": "0.png", "question": "what?", "answer": "a cat", "metric": "anls"},
    ]
    first, second = read_data(write(folder, *rows), "contains").item(0).questions
    assert (first.answers, first.metric, second.metric) == (("3",), "contains", "anls")


GOOD = {"image": "0.png", "question": "what?"}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{nonsense", "not a JSON object"),
        pytest.param("[" * 100_000, "not a JSON object .nested too deeply", id="deep"),
        pytest.param(f'{{"image": {"9" * 5_000}}}', "not a JSON object .Exceeds the limit", id="digits"),
        ('["a"]', "expected an object with the fields of a question"),
        ({"question": "what?"}, "no image, images, video or videos"),
        ({"image": "0.png"}, "no question"),
        ({**GOOD, "question": ""}, "the question is empty"),
        ({**GOOD, "question": ["what?"]}, 'question must be text, got \\["what\\?"\\]'),
        ({**GOOD, "answers": "red"}, 'answers must be a list of texts, got "red"'),
        ({**GOOD, "answers": []}, "answers must be a list of texts"),
        ({**GOOD, "answer": "a", "answers": ["a"]}, "both answer and answers"),
        ({**GOOD, "answer": True}, "answer must be text, got true"),
        ({**GOOD, "metric": "bleu"}, "unknown metric 'bleu'"),
        ({**GOOD, "image": "nowhere.png"}, "nowhere.png does not exist"),
        ({**GOOD, "image": "words.png"}, "words.png is not an image"),
        ({**GOOD, "image": "https://example.com/a.png"}, "https://example.com/a.png: URLs are not read"),
        ({"video": "empty", "question": "what?"}, "the folder contains no images"),
        ({"video": "nowhere.mp4", "question": "what?"}, "nowhere.mp4 does not exist"),
        ({**GOOD, "choices": ["a", "b"], "answer": "c"}, "the answer 'c' is not a choice"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(folder, row, complaint):
    with pytest.raises(CovistError, match=f"mine.jsonl line 2: .*{complaint}") as caught:
        read_data(write(folder, GOOD, row))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("choices", [None, []])
def test_no_choices_are_none(folder, choices):
    (item,) = read_data(write(folder, {**GOOD, "choices": choices})).items()
    assert item.questions[0].choices == ()


def test_a_file_without_questions_is_refused(folder):
    with pytest.raises(CovistError, match="mine.jsonl contains no questions"):
        read_data(write(folder, ""))
    with pytest.raises(CovistError, match="cannot read .*nowhere.jsonl"):
        read_data(folder / "nowhere.jsonl")


def test_a_damaged_image_is_named_with_its_line_when_it_is_read(folder):
    whole = (folder / "0.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    suite = read_data(write(folder, GOOD, {**GOOD, "image": "cut.png"}))
    with pytest.raises(CovistError, match=r"mine.jsonl line 2: .*cut.png is damaged or truncated"):
        suite.item(1).shown  # noqa: B018


def test_fields_that_nothing_reads_are_noted(folder):
    with pytest.warns(UserWarning, match="ignored fields: anwser"):
        read_data(write(folder, {**GOOD, "anwser": "red"}, {**GOOD, "anwser": "blue"}))
    assert "anwser" not in KEYS


def test_the_fingerprint_follows_questions_files_and_settings(folder):
    def version(*rows, **options):
        return read_data(write(folder, *rows), **options).fingerprint()

    many = [{"image": f"{number % 3}.png", "question": f"what {number}?"} for number in range(30)]
    first = version(*many)
    assert first == version(*many)
    assert first != version(*many[:-1], {**many[-1], "answer": "red"})
    assert first != version(*many, metric="agreement", frames=3)
    Image.new("RGB", (112, 84)).save(folder / "2.png")
    assert first != version(*many)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Loaded from a folder, as users do: that brings a processor for videos."""
    folder, case = tmp_path_factory.mktemp("qwen"), first_of("qwen2.5-vl")
    case.model.save_pretrained(folder)
    case.chatting_processor().save_pretrained(folder)
    return load_model(str(folder))


def rows_of_every_kind():
    return [
        {"image": "0.png", "question": "what is this ?", "answer": "the colour", "metric": "anls"},
        {"image": "0.png", "question": "is that the colour ?", "answers": ["what"] * 10},
        {"image": "1.png", "question": "and this"},
        {"images": ["1.png", "2.png"], "question": "what is the colour of this ?", "answer": "what"},
        {"video": "film", "question": "what is that ?"},
        {"video": "film", "question": "is this that ?"},
    ]


@pytest.mark.filterwarnings("ignore:no clip= given")
def test_every_kind_of_line_is_evaluated_and_resumed_on_a_model_without_scenes(folder, qwen):
    suite = read_data(write(folder, *rows_of_every_kind()), frames=4)
    options = {"suite": suite, "model": qwen, "max_new_tokens": 5}
    results = evaluate("covist-fixed,random", "50%,6", out=folder / "out", **options)
    assert results.families == ("anls", "vqa", "agreement", "exact")
    assert (results.images, results.questions, results.unit) == (4, 6, "item")
    vanilla, *scores = results.scores
    assert vanilla.families["agreement"] == 100 and vanilla.same_answers == 100
    assert [str(score.budget) for score in scores] == ["50%", "6", "50%", "6"]
    for score in scores:
        assert 0 <= score.families["agreement"] <= 100 and score.reached
        expected = vanilla.mean_tokens / 2 if str(score.budget) == "50%" else score.target
        assert score.mean_tokens == pytest.approx(expected, abs=0.6)
    assert scores[1].target > 6, "a count is meant for each frame of a video"
    seen = []
    again = evaluate(
        "covist-fixed,random", "50%,6", out=folder / "out", progress=lambda *at: seen.append(at), **options
    )
    assert [done for done, *_ in seen] == [20]
    assert again.to_dict()["results"] == results.to_dict()["results"]
    stored = (folder / "out" / "results.md").read_text()
    assert "| random | 50% |" in stored and "6 questions about 4 items" in stored
    with pytest.raises(CovistError, match="holds answers with max_new_tokens=5, not 64"):
        evaluate("random", "6", out=folder / "out", suite=suite, model=qwen)


def test_without_answers_retention_is_agreement(folder, untrained):
    rows = [{"image": f"{number}.png", "question": "what color is the square?"} for number in range(3)]
    results = evaluate("random", "2", suite=read_data(write(folder, *rows)), model=untrained, max_new_tokens=4)
    assert results.measure == "agreement"
    vanilla, score = results.scores
    assert (vanilla.retention, vanilla.retention_interval) == (100, (100, 100))
    assert score.retention == score.accuracy == score.families["agreement"] < 100
    assert "## Agreement" in results.to_markdown() and "accuracy" not in results.to_markdown()


def test_more_questions_than_fit_a_batch_are_answered_like_single_ones(folder, qwen, monkeypatch):
    monkeypatch.setattr("covist.eval.subject.LARGEST_BATCH", 2)
    asked = [{"image": "0.png", "question": question} for question in ("what", "is this", "and that ?")]
    subject, item = Subject.resolve(qwen, 4), read_data(write(folder, *asked)).item(0)
    assert [request.count for request in subject.requests(item)] == [2, 1]
    alone = [Subject.resolve(qwen, 4).answer(Item.of(item.shown, question)) for question in item.questions]
    together = subject.answer(item)
    assert together.texts == [said.texts[0] for said in alone]
    assert together.tokens == [said.tokens[0] for said in alone]


def test_requests_are_kept_as_far_as_memory_is_granted(folder, qwen, monkeypatch):
    suite = read_data(write(folder, *({"image": f"{number}.png", "question": "what"} for number in range(2))))
    subject = Subject.resolve(qwen, 4)
    first, second = suite.items()
    (request,) = subject.requests(first)
    monkeypatch.setattr("covist.eval.subject.KEPT_BYTES", request.nbytes + 1)
    assert subject.requests(first)[0] is request
    assert subject.requests(second)[0] is not subject.requests(second)[0]
    assert subject.answer(second).tokens == Subject.resolve(qwen, 4).answer(second).tokens


def test_a_suite_can_be_made_of_items_without_a_file(qwen):
    image = Image.new("RGB", (112, 84), "red")
    suite = Suite.of("two", [Item.of(image, Question("what ?")), Item.of([image, image], Question("and ?"))])
    assert [item.number for item in suite.items()] == [0, 1]
    assert len(suite.item(1).shown) == 2
    with pytest.raises(CovistError, match="suite none has no items"):
        Suite.of("none", [])
