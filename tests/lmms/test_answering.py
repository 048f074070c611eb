"""The model behind the plugin: on every family a batch answers as each conversation alone, with and without images."""

import pytest
from support.case import SIZES
from support.cases import FAMILIES, FROZEN, first_of
from support.checkpoints import saved
from support.families import smooth_image

from covist import compress
from covist.lmms.answering import Answerer
from covist.lmms.arguments import Arguments
from covist.lmms.conversations import from_visuals
from covist.lmms.generation import Generation
from covist.request.concentration import mean_concentration
from covist.request.decoding import generate
from covist.request.inputs import prepare
from covist.request.together import Shown

pytestmark = pytest.mark.filterwarnings("ignore:no clip= given")
IMAGES = [smooth_image(*size, seed=seed) for seed, size in enumerate(SIZES)]
ASKED = [((0,), "what is this ?"), ((1,), "is that the colour of this ?"), ((0, 2), "what ?"), ((), "is this that ?")]
CONVERSATIONS = [from_visuals([IMAGES[index] for index in indices], text, frames=4) for indices, text in ASKED]
GENERATION = Generation.of({"max_new_tokens": 4})


def answerer(folder, **given) -> Answerer:
    return Answerer(Arguments.of({"pretrained": folder, "concentration": FROZEN, **given}), "cpu")


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_a_batch_answers_as_each_conversation_alone_and_as_the_library(case, tmp_path):
    ours = answerer(saved(case, tmp_path), budget=6)
    together = ours.answer(CONVERSATIONS, GENERATION)
    alone = [ours.answer([one], GENERATION)[0] for one in CONVERSATIONS]
    assert [one.text for one in together] == [one.text for one in alone]
    assert [one.shown for one in together] == [one.shown for one in alone]
    assert [one.shown.views for one in together] == [1, 1, 2, 0]
    assert len({one.text for one in alone}) > 1, "the answers say nothing"
    loaded = ours.loaded
    ours._handle.remove()
    with compress(loaded.model, loaded.processor, budget=6, concentration=FROZEN):
        written = [
            generate(loaded.model, prepare(loaded, [IMAGES[index] for index in indices], text).inputs(loaded.model), 4)
            for indices, text in ASKED
            if indices
        ]
    texts = [loaded.processor.batch_decode(row, skip_special_tokens=True)[0].strip() for row in written]
    assert texts == [one.text for one in alone[: len(texts)]]


@pytest.mark.parametrize("family", ["llava-next", "qwen2.5-vl"])
def test_visual_tokens_are_counted_before_and_after(family, tmp_path):
    folder = saved(first_of(family), tmp_path)
    plain, small = answerer(folder, budget="none", concentration=None), answerer(folder, budget=6)
    before = [one.shown for one in plain.answer(CONVERSATIONS, GENERATION)]
    after = [one.shown for one in small.answer(CONVERSATIONS, GENERATION)]
    assert [one.tokens for one in after] == [one.tokens for one in before]
    assert all(one.tokens == one.kept == one.prefill for one in before)
    assert [one.kept for one in after] == pytest.approx([6, 6, 12, 0])
    assert before[-1] == Shown()


def test_beams_change_no_count(tmp_path):
    ours = answerer(saved(first_of("llava-next"), tmp_path), budget=6)
    greedy = ours.answer(CONVERSATIONS, GENERATION)
    beams = ours.answer(CONVERSATIONS, Generation.of({"max_new_tokens": 4, "num_beams": 3}))
    assert [one.shown for one in beams] == [one.shown for one in greedy]


def test_the_reference_of_a_task_is_that_of_its_first_images_that_differ(tmp_path):
    ours = answerer(saved(first_of("llava-next"), tmp_path), concentration=None)
    assert ours.needs_reference
    twice = [*CONVERSATIONS, *CONVERSATIONS, from_visuals([IMAGES[0]], "and that ?", frames=4)]
    requests = [one.request(ours.loaded) for one in CONVERSATIONS if one.shows_something]
    assert ours.measure_reference(iter(twice)) == mean_concentration(ours.loaded, requests)
    assert ours.measure_reference(CONVERSATIONS[-1:]) is None


@pytest.mark.parametrize(
    "given", [{"budget": "none"}, {"method": "random"}, {"concentration": 0.1}, {"concentration": "running"}]
)
def test_no_reference_is_measured_where_none_is_read_or_one_is_given(given, tmp_path):
    ours = answerer(saved(first_of("llava-next"), tmp_path), **{"concentration": None, **given})
    assert not ours.needs_reference


def test_answers_end_where_the_task_says(tmp_path):
    ours = answerer(saved(first_of("llava-next"), tmp_path), budget="none", concentration=None)
    (whole,) = ours.answer(CONVERSATIONS[:1], GENERATION)
    assert whole.new_tokens == 4 and len(whole.text) > 1
    end = whole.text[len(whole.text) // 2]
    (cut,) = ours.answer(CONVERSATIONS[:1], Generation.of({"max_new_tokens": 4, "until": [end]}))
    assert cut.text == whole.text.split(end)[0].strip()


def test_weights_and_attention_can_be_chosen(tmp_path):
    ours = answerer(saved(first_of("llava-next"), tmp_path), budget=6, dtype="bfloat16", attn_implementation="eager")
    assert (ours.loaded.dtype, ours.loaded.attention) == ("bfloat16", "eager")
    assert [one.shown.kept for one in ours.answer(CONVERSATIONS[:2], GENERATION)] == [6, 6]
