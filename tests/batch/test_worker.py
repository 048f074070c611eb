"""The worker: answers equal those of single requests, whatever the batch; what fails costs its own row alone."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from covist import CovistError, tiny
from covist.api.setup import Setup
from covist.batch.rows import Row, read_row
from covist.batch.spec import WorkerSpec
from covist.batch.worker import Worker, facts_about, load
from covist.faults import is_out_of_memory
from covist.loading import Loading
from covist.request.answer import ask
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel

QUESTIONS = ("where is the blue square ?", "how many objects are there ?", "is there a red circle ?", "what ?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("worker")
    for seed in range(3):
        tiny.scene_image(tiny.sample_scene(seed)).save(made / f"{seed}.png")
    model, _, (clip, _) = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    tiny.save(model, clip, made / "model")
    return made


@pytest.fixture(autouse=True)
def in_the_folder(folder, monkeypatch):
    """The paths of images are relative to it."""
    monkeypatch.chdir(folder)


@pytest.fixture(scope="module")
def spec(folder) -> WorkerSpec:
    setup = Setup(budget=16, concentration=0.1)
    return WorkerSpec(str(folder / "model"), loading=Loading(device="cpu"), setup=setup, max_new_tokens=4)


@pytest.fixture(scope="module")
def loaded(spec) -> LoadedModel:
    return load(spec)


@pytest.fixture
def work(spec, loaded):
    """A worker with other settings, on the one model."""
    made = []

    def start(**changed) -> Worker:
        for worker in made:
            worker.close()  # one at a time may have the model
        made.append(Worker(replace(spec, **changed), loaded))
        return made[-1]

    yield start
    for worker in made:
        worker.close()


def rows(count: int) -> list[Row]:
    """Several images and lengths, one conversation, one row without an image."""
    made = []
    for number in range(count):
        prompt = " ".join(QUESTIONS[: 1 + number % 4])
        images = [f"{seed}.png" for seed in range(1 + number % 2)]
        made.append(read_row(number, {"id": f"row-{number}", "images": images, "prompt": prompt}))
    text = [{"role": "user", "content": "how many objects are there ?"}]
    return [*made, read_row(count, {"id": "text", "messages": text})]


def without_times(answers):
    return [replace(answer, seconds=None) for answer in answers]


@pytest.mark.parametrize("method", ["covist-fixed", "divprune", "vanilla"])
def test_answers_are_those_of_single_requests(work, loaded, folder, method):
    asked = rows(5)
    worker = work(setup=Setup(method, 16, 0.1))
    answers = worker(asked)
    worker.close()
    assert [answer.id for answer in answers] == [row.id for row in asked]
    for row, answer in list(zip(asked, answers, strict=True))[:-1]:
        images = [tiny.scene_image(tiny.sample_scene(seed)) for seed in range(len(row.content["images"]))]
        request = prepare(loaded, images, row.content["prompt"])
        alone = ask(loaded, request, Setup(method, 16, 0.1), max_new_tokens=4)
        assert answer.answer == alone.text and answer.error is None
        assert answer.tokens_before == 576 * len(images)
        assert answer.tokens_after == pytest.approx(alone.mean_cached_tokens * len(images))
    assert (answers[-1].tokens_before, answers[-1].tokens_after, answers[-1].error) == (0, 0, None)


def test_a_row_has_a_budget_of_its_own_by_the_age_of_its_turns_too(work):
    parts = [{"type": "image_url", "image_url": {"url": f"{seed}.png"}} for seed in range(3)]
    shown = [{"role": "user", "content": [part, {"type": "text", "text": "what ?"}]} for part in parts]
    said = [{"role": "assistant", "content": "red"}] * 3
    turns = [turn for both in zip(shown, said, strict=True) for turn in both][:-1]
    asked = [*rows(2)[:2], read_row(2, {"id": "turns", "messages": turns})]
    kept = {
        budget: [answer.tokens_after for answer in work(setup=Setup("covist-max", budget))(asked)]
        for budget in ("total:40", "ages:32,16,8")
    }
    assert kept == {"total:40": [40, 40, 40], "ages:32,16,8": [32, 2 * 32, 32 + 16 + 8]}
    short = work(setup=Setup("covist-max", "total:2"))(asked)
    assert [answer.error for answer in short][:2] == [None, None]
    assert "'total:2' is not enough for 3 images of at least 1 token each" in str(short[2].error)


def test_no_answer_depends_on_order_or_batch_size(work):
    asked = rows(8)
    together = {answer.id: answer for answer in without_times(work()(asked))}
    alone = {answer.id: answer for answer in without_times(work(batch_size=1)(asked[::-1]))}
    assert together == alone
    assert len({answer.answer for answer in alone.values()}) > 1, "the answers say nothing"


def test_bad_rows_cost_no_other_row_its_answer(work, folder):
    (folder / "torn.png").write_bytes((folder / "0.png").read_bytes()[:300])
    good = rows(2)
    bad = [
        read_row(10, {"id": "missing", "image": "nowhere.png", "prompt": "what ?"}),
        read_row(11, {"id": "torn", "image": "torn.png", "prompt": "what ?"}),
        read_row(12, {"id": "base64", "image": "data:image/png;base64,!", "prompt": "what ?"}),
        read_row(13, {"id": "mute", "image": "0.png"}),
        read_row(14, {"id": "long", "image": "0.png", "prompt": "what ? " * 5000}),
    ]
    answers = {answer.id: answer for answer in work()([*bad[:3], *good, *bad[3:]])}
    assert all(answers[row.id].error and "\n" not in answers[row.id].error for row in bad)
    assert all(answers[row.id].answer is not None for row in good)
    assert "positions of the model" in answers["long"].error
    assert without_times(answers[row.id] for row in good) == without_times(work()(good))


def test_an_error_about_a_file_name_that_is_not_text_can_be_written(work):
    for bad in ("half \ud800.png", "\udcff.png"):
        (answer,) = work()([Row(0, "a", {"image": bad, "prompt": "what ?"})])
        answer.error.encode()
        assert "\\ud" in answer.error


def test_words_unknown_to_the_model_are_not_an_error(work):
    (answer,) = work()([read_row(0, {"image": "0.png", "prompt": "quo vadis ?"})])
    assert answer.error is None


def test_an_answer_that_is_cut_off_says_so(work, loaded, monkeypatch):
    row, settings = rows(1)[:1], loaded.model.generation_config
    assert work()(row)[0].finish_reason == "length"
    monkeypatch.setattr(settings, "eos_token_id", list(range(loaded.model.config.text_config.vocab_size)))
    assert work()(row)[0].finish_reason == "stop", "whatever it says now ends the answer"


class Memory:
    """A model whose memory holds batches of `rows` rows."""

    def __init__(self, worker: Worker, rows: int, error: Exception, monkeypatch):
        self.sizes: list[int] = []
        original = worker._together.answer

        def answer(posed, **options):
            self.sizes.append(len(posed))
            if len(posed) > rows:
                raise error
            return original(posed, **options)

        monkeypatch.setattr(worker._together, "answer", answer)


SHORTAGES = [
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: type(error).__name__)
def test_memory_runs_out_in_several_ways(error):
    assert is_out_of_memory(error)


def test_a_batch_that_memory_does_not_hold_is_halved_and_the_next_one_is_smaller(work, monkeypatch):
    asked = rows(7)
    expected = without_times(work(batch_size=1)(asked))
    worker = work(batch_size=8)
    memory = Memory(worker, 2, SHORTAGES[0], monkeypatch)
    assert without_times(worker(asked)) == expected
    assert memory.sizes[0] == 8 and memory.sizes.count(8) == 1
    again = len(memory.sizes)
    worker(asked)
    assert max(memory.sizes[again:]) <= 4, "it has learnt"


def test_a_row_that_memory_does_not_hold_alone_is_reported(work, monkeypatch):
    worker = work()
    memory = Memory(worker, 0, torch.OutOfMemoryError(), monkeypatch)
    assert {answer.error for answer in worker(rows(3))} == {"out of memory, even in a batch of one row"}
    assert memory.sizes.count(1) == 4


def test_a_row_that_breaks_the_model_costs_itself_alone(work, monkeypatch):
    worker, asked = work(), rows(5)
    expected = without_times(worker(asked))
    original, poisoned = worker._together.answer, {}

    def answer(posed, **options):
        poisoned.setdefault("one", posed[-1])
        if any(one is poisoned["one"] for one in posed):
            raise IndexError("index out of\nrange")
        return original(posed, **options)

    monkeypatch.setattr(worker._together, "answer", answer)
    answers = without_times(worker(asked))
    failed = [place for place, answer in enumerate(answers) if answer.error]
    assert [answers[place].error for place in failed] == ["IndexError: index out of range"]
    assert all(answers[place] == expected[place] for place in range(len(asked)) if place not in failed)


def test_an_accelerator_that_broke_down_ends_the_worker_instead_of_failing_every_row(work, monkeypatch):
    class Broken(RuntimeError):
        """What torch raises when a device is lost."""

    monkeypatch.setattr("covist.faults.BROKEN", (Broken,))
    worker = work()
    Memory(worker, 0, Broken("illegal memory access"), monkeypatch)
    with pytest.raises(Broken):
        worker(rows(2))


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("shape mismatch"), KeyError("memory")])
def test_other_errors_are_not_taken_for_lack_of_memory(error):
    assert not is_out_of_memory(error)


def test_a_spec_can_be_sent_and_its_worker_answers_the_same(work, spec, loaded):
    sent = Worker(pickle.loads(pickle.dumps(spec.with_facts(facts_about(spec, loaded)))))  # loads a model of its own
    assert without_times(sent(rows(1))) == without_times(work()(rows(1)))


def test_a_worker_with_other_weights_refuses_to_work(spec, loaded):
    wanted = facts_about(spec, loaded).identity
    with pytest.raises(CovistError, match=r"began with another model \(model: other then, Llava"):
        Worker(replace(spec, identity={**wanted, "model": "other"}), loaded)


def test_the_reference_is_that_of_the_spec_or_measured_and_none_where_none_is_read(spec, loaded):
    assert facts_about(spec, loaded).concentration == 0.1
    assert facts_about(replace(spec, setup=Setup("divprune", 16, 0.1)), loaded).concentration is None
    assert facts_about(replace(spec, setup=Setup("vanilla")), loaded).concentration is None


def test_the_cache_of_a_token_is_that_of_all_layers(spec, loaded):
    text = loaded.model.config.text_config
    width = text.hidden_size // text.num_attention_heads
    expected = 2 * text.num_hidden_layers * text.num_key_value_heads * width * 4
    assert facts_about(spec, loaded).kv_bytes_per_token == expected
