"""The classes that lmms-eval calls, without its program: order, errors and what is counted."""

from __future__ import annotations

import pytest
from support.cases import first_of
from support.checkpoints import saved
from support.families import smooth_image

from covist import CovistError

pytest.importorskip("lmms_eval", reason="lmms-eval is not installed; make test-lmms has it")
pytestmark = [pytest.mark.lmms, pytest.mark.filterwarnings("ignore:no clip= given")]

TEXTS = ["what is this ?", "is that ?", "what is the colour of this and that ?", "is this the colour ?", "what ?"]
DOCUMENTS = [
    {"image": smooth_image(60 + 20 * number, 90, seed=number), "text": text} for number, text in enumerate(TEXTS)
]
WRITTEN = {"max_new_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return saved(first_of("llava-next"), tmp_path_factory.mktemp("model"))


def model(kind: str, folder: str, **arguments):
    from covist.lmms import model as classes

    made = getattr(classes, kind)(pretrained=folder, budget=6, device="cpu", **arguments)
    made.task_dict = {"task": {"test": DOCUMENTS}}
    return made


def instance(arguments: tuple, number: int, **metadata):
    from lmms_eval.api.instance import Instance

    said = {"task": "task", "doc_id": number, "repeats": 1, **metadata}
    return Instance("generate_until", arguments, idx=0, metadata=said)


def chat_requests(**written) -> list:
    def messages(document):
        shown = {"type": "image", "url": document["image"]}
        return [{"role": "user", "content": [shown, {"type": "text", "text": document["text"]}]}]

    kwargs = {**WRITTEN, **written}
    return [instance((text, messages, kwargs, number, "task", "test"), number) for number, text in enumerate(TEXTS)]


def simple_requests() -> list:
    def visuals(document):
        return [document["image"]]

    return [instance((text, WRITTEN, visuals, number, "task", "test"), number) for number, text in enumerate(TEXTS)]


def test_answers_come_in_the_order_of_the_requests_whatever_the_batches(folder):
    one_by_one = [result.text for result in model("CovistChat", folder).generate_until(chat_requests())]
    together = model("CovistChat", folder, batch_size=3).generate_until(chat_requests())
    assert [result.text for result in together] == one_by_one
    assert len(set(one_by_one)) > 1, "the answers say nothing"


def test_chat_and_simple_tasks_are_asked_the_same(folder):
    chat = model("CovistChat", folder, batch_size=2).generate_until(chat_requests())
    simple = model("CovistSimple", folder, batch_size=5).generate_until(simple_requests())
    assert [result.text for result in simple] == [result.text for result in chat]


def test_a_part_of_the_requests_is_answered_with_the_reference_of_the_whole_task(folder):
    """So a cache, a limit or another process that takes questions away changes no answer."""
    whole = model("CovistChat", folder)
    answers = [result.text for result in whole.generate_until(chat_requests())]
    part = model("CovistChat", folder)
    assert [result.text for result in part.generate_until(chat_requests()[3:])] == answers[3:]
    assert part._references == whole._references and None not in part._references.values()


def test_an_error_of_generate_is_raised(folder, monkeypatch):
    made = model("CovistChat", folder)

    def fails(**inputs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(made._answerer.loaded.model, "generate", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        made.generate_until(chat_requests())


def test_the_requests_that_only_fill_up_a_process_are_not_counted(folder):
    from lmms_eval.models.model_utils import gen_metrics

    filling = chat_requests()[:1]
    filling[0].metadata["__padding_only__"] = True
    gen_metrics.reset_logged_metrics()
    model("CovistChat", folder).generate_until([*chat_requests()[:2], *filling])
    (logged,) = gen_metrics.get_logged_metrics_history()
    assert logged["total_gen_tokens"] == 2 * WRITTEN["max_new_tokens"]
    assert logged["visual_tokens_kept"] == pytest.approx(6)


def test_settings_of_the_generation_stay_as_the_task_gave_them(folder):
    requests = chat_requests(image_aspect_ratio="original")
    model("CovistChat", folder).generate_until(requests[:1])
    assert requests[0].args[2] == {**WRITTEN, "image_aspect_ratio": "original"}


@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until_multi_round"])
def test_other_kinds_of_tasks_are_refused_in_one_line(folder, kind):
    with pytest.raises(CovistError) as refused:
        getattr(model("CovistSimple", folder), kind)([])
    assert "\n" not in str(refused.value)


def test_lmms_eval_finds_the_model_by_its_entry_point():
    from lmms_eval.models import get_model

    assert get_model("covist").__name__ == "CovistChat"
    assert get_model("covist", force_simple=True).__name__ == "CovistSimple"
