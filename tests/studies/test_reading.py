import pytest
import torch
from studies.diagnostics import _observe, eager_attention
from studies.reading import _without, image_hidden, reading_by_layer, table

from covist.eval.subject import Subject
from covist.eval.suite import load_suite


@pytest.fixture(scope="module")
def subject(untrained):
    return Subject.resolve(untrained)


def image_of(subject, item):
    return subject.requests(item)[0].prompts["input_ids"] == subject.model.config.image_token_id


@pytest.fixture(scope="module")
def item():
    return load_suite("scenes").item(0)


def test_the_text_gives_the_image_no_attention_from_the_layer_on(subject, item):
    layers = subject.model.model.language_model.layers
    ids = subject.requests(item)[0].prompts
    image = image_of(subject, item)[:1, ids["attention_mask"][0].bool()]
    with eager_attention(subject):
        before = _observe(subject, item, 0).mass
        with image_hidden(layers[2:], image):
            after = _observe(subject, item, 0).mass
    assert torch.equal(after[:2], before[:2])
    assert after[2:].abs().max() < 1e-6 < before[2:].min()


def test_a_model_that_never_sees_the_image_answers_the_same_about_any(subject, item):
    other = load_suite("scenes").item(1)
    layers = subject.model.model.language_model.layers

    def logits(of):
        inputs = {**subject.requests(item)[0].prompts, "pixel_values": subject.requests(of)[0].images["pixel_values"]}
        rows = len(inputs["input_ids"])
        inputs["pixel_values"] = inputs["pixel_values"].repeat(rows, 1, 1, 1)
        with torch.no_grad():
            return subject.model(**inputs).logits[:, -1]

    with image_hidden(layers, image_of(subject, item)):
        blind = logits(item), logits(other)
    assert torch.equal(*blind)
    assert not torch.equal(logits(item), logits(other))


def test_hiding_nothing_answers_as_before_and_leaves_nothing_behind(subject, item):
    before = subject.answer(item)
    layers = subject.model.model.language_model.layers
    with image_hidden(layers[len(layers) :], image_of(subject, item)):
        assert subject.answer(item) == before
    with image_hidden(layers, image_of(subject, item)):
        blind = subject.answer(item)
    assert blind != before == subject.answer(item)


@pytest.mark.parametrize("queries", [5, 1])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_only_text_after_the_image_loses_sight_of_it(queries, kind):
    image = torch.tensor([[0, 1, 1, 0, 0]]).bool()  # of five tokens, and one is written in the second case
    keys = 5 if queries == 5 else 6
    causal = torch.ones(queries, keys).tril(keys - queries).bool()
    least = torch.finfo(torch.float32).min
    given = {"none": None, "bool": causal, "float": torch.zeros(queries, keys).masked_fill(~causal, least)}[kind]
    mask = _without(image, given, queries, keys)
    allowed = (mask if mask.dtype == torch.bool else mask == 0)[0, 0]
    for row in range(queries):
        for key in range(keys):
            query = keys - queries + row
            of_image = [place < 5 and bool(image[0, place]) for place in (query, key)]
            assert allowed[row, key] == (key <= query and not (of_image[1] and not of_image[0]))


def test_there_is_a_reading_for_every_number_of_layers(untrained):
    readings = reading_by_layer(limit=2, model=untrained)
    assert [one.layers for one in readings] == [4, 3, 2, 1, 0]
    assert len(table(readings).splitlines()) == 2 + 5
