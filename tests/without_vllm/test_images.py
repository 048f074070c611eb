"""The rows of an image are what `covist.compress` lets into the decoder: embeddings, positions and weights."""

import warnings
from functools import cache

import pytest
import torch
from support.cases import FROZEN, first_of
from support.images import film

import covist
from covist import tiny
from covist.budget import Count
from covist.contract.views import ImageContext
from covist.engine.decoder import FrozenDecoder
from covist.errors import CovistError
from covist.families.registry import family_for
from covist.families.text_tower import TextTower
from covist.methods.registry import available_methods
from covist.request.inputs import Request, prepare
from covist.request.loading import LoadedModel, load_model
from covist.request.tokens import encoded_images
from covist.vllm.images import ImageCompressor, embedding_signals, split_evenly
from covist.vllm.item import ImageRequest
from covist.vllm.rows import Side, side_columns
from covist.vllm.settings import BY_EMBEDDINGS, Serving

AXES = {"qwen2.5-vl": 3}


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


@cache  # compression undoes itself, so one model serves them all
def embedded(name: str) -> tuple[LoadedModel, Request]:
    loaded = load_model(name)
    image, question, _ = tiny.demo("next" if name == "tiny-next" else "tiny")
    return loaded, prepare(loaded, [image], question)


def small(family: str) -> tuple[LoadedModel, Request]:
    case = first_of(family)
    return LoadedModel(family, case.model, case.processor()), Request.of_inputs(case.ask("{image} what is there"))


MODELS = {
    "tiny": lambda: embedded("tiny"),
    "tiny-next": lambda: embedded("tiny-next"),
    "qwen2.5-vl": lambda: small("qwen2.5-vl"),
}


def entered(loaded: LoadedModel, request: Request, **options):
    """The image in front of the first layer under `covist.compress`: embeddings, positions relative to it, weights."""
    seen = {}

    def keep(module, inputs, kwargs):
        seen.setdefault("hidden", (inputs[0] if inputs else kwargs["hidden_states"])[0])
        seen.setdefault("positions", kwargs["position_ids"])  # None where layers are given angles alone

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no clip= given")
        handle = covist.compress(loaded.model, loaded.processor, **options)
    with handle:
        hook = family_for(loaded.model).decoder.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
        loaded.model(**request.inputs(loaded.model))
        hook.remove()
        (stage, *_) = handle.report.visuals[0].stages
    first = encoded_images(loaded, request)[0].start
    positions = stage.positions if seen["positions"] is None else seen["positions"][0, first:, None]
    return seen["hidden"][first:], positions - positions[:1], stage


def compressor(loaded: LoadedModel, settings: dict, clip=None) -> ImageCompressor:
    family = family_for(loaded.model)
    decoder = FrozenDecoder(family.decoder)
    made = ImageCompressor(Serving.read(settings).method, decoder, loaded.model.get_input_embeddings())
    made.text_tower = TextTower.resolve(clip)
    return made


def grid_of(signals) -> torch.Tensor:
    """Positions of Qwen's tokens relative to the first one."""
    (rows, columns), *_ = signals.grid.views
    index = torch.arange(rows * columns)
    return torch.stack([index * 0, index // columns, index % columns], -1)


def split(rows: torch.Tensor, axes: int = 1) -> tuple[torch.Tensor, Side]:
    columns = side_columns(axes)
    return rows[:, :-columns], Side.unpack(rows[:, -columns:])


@pytest.mark.parametrize("method", ["covist-fixed", "covist-max", "divprune", "visionzip", "divprune+csc+sca"])
@pytest.mark.parametrize("name", MODELS)
def test_the_rows_are_what_enters_the_decoder(name, method):
    loaded, request = MODELS[name]()
    reference = {"concentration": FROZEN} if method == "covist-fixed" else {}
    hidden, positions, stage = entered(loaded, request, budget=12, method=method, instruction="", **reference)
    signals = encoded_images(loaded, request)[0].signals
    settings = {"budget": 12, "method": method, **reference}
    grid = grid_of(signals) if name in AXES else None
    embeddings, side = split(compressor(loaded, settings).rows(signals, 12, grid=grid), AXES.get(name, 1))
    count = len(embeddings)
    assert count == 12 + int((~signals.content).sum())
    torch.testing.assert_close(embeddings, hidden[:count])
    # Where the first row is not the first token of the image, positions begin there.
    assert torch.equal(side.offsets - side.offsets[:1], positions[:count])
    torch.testing.assert_close(side.log_weight[side.visual], stage.weights.log())


def test_a_question_takes_part_as_it_does_in_a_prompt():
    loaded, request = embedded("tiny")
    question = "where is the blue square?"
    hidden, _, stage = entered(loaded, request, budget=24, clip=loaded.clip, concentration=FROZEN, instruction=question)
    signals = encoded_images(loaded, request)[0].signals
    serving = {"budget": 24, "concentration": FROZEN, "instruction": True}
    made = compressor(loaded, serving, loaded.clip)
    embeddings, side = split(made.rows(signals, 24, ImageRequest(text=question)))
    torch.testing.assert_close(embeddings, hidden[:24])
    torch.testing.assert_close(side.log_weight, stage.weights.log())
    without, _ = split(made.rows(signals, 24))
    assert not torch.equal(without, embeddings)


def test_without_clip_a_question_is_read_from_its_tokens():
    loaded, request = embedded("tiny")
    question = "where is the blue square?"
    hidden, *_ = entered(loaded, request, budget=24, concentration=FROZEN, instruction=question)
    signals = encoded_images(loaded, request)[0].signals
    tokens = loaded.processor.tokenizer(question, add_special_tokens=False).input_ids
    made = compressor(loaded, {"budget": 24, "concentration": FROZEN, "instruction": True})
    embeddings, _ = split(made.rows(signals, 24, ImageRequest(text=question, tokens=tokens)))
    torch.testing.assert_close(embeddings, hidden[:24])


def test_images_leave_no_trace():
    loaded, request = embedded("tiny")
    made = compressor(loaded, {"budget": 12})

    def rows(count):
        return made.rows(encoded_images(loaded, request)[0].signals, count)

    first = rows(12)
    assert [len(rows(count)) for count in (7, 58, 576)] == [7, 58, 576]
    assert torch.equal(rows(12), first)


@pytest.mark.parametrize("method", ["covist-max:features=embeddings", "divprune", "tome", "random"])
def test_embeddings_are_all_that_some_methods_need(method):
    loaded, request = embedded("tiny-next")
    signals = encoded_images(loaded, request)[0].signals
    made, embeddings = compressor(loaded, {"budget": 12, "method": method}), signals.span
    bare = embedding_signals(embeddings, signals.content, embeddings.shape[1])
    assert torch.equal(made.rows(bare, 12), made.rows(signals, 12))


def test_embeddings_of_a_video_are_compressed_as_its_frames():
    (loaded, _), context = embedded("tiny"), film(torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0)))
    made, signals = compressor(loaded, {"budget": 5, "method": BY_EMBEDDINGS}), context.signals
    bare, flat = (embedding_signals(signals.span, signals.content, width=16, frames=frames) for frames in (4, 1))
    assert torch.equal(made.rows(bare, 5), made.rows(signals, 5))
    assert not torch.equal(made.rows(bare, 5), made.rows(flat, 5))


def test_features_for_later_layers_follow_the_embeddings():
    loaded, request = embedded("tiny")
    made, content = compressor(loaded, {"budget": 4, "method": "divprune"}), torch.ones(9, dtype=torch.bool)
    span = torch.randn(9, 12)
    rows = made.rows(embedding_signals(span, content, width=4), 4)
    assert all(any(torch.equal(row, own) for own in span) for row in rows[:, :12])


def is_served(method: str) -> bool:
    try:
        Serving.read({"budget": 40, "method": method})
    except CovistError:
        return False
    return True


@pytest.mark.parametrize("method", filter(is_served, available_methods()))
def test_every_served_method_fills_the_places_of_the_prompt(method):
    loaded, request = embedded("tiny")
    made = compressor(loaded, {"budget": 40, "method": method})
    family = family_for(loaded.model)
    found = []
    hooks = family.capture(found.extend, available_methods()[method].encoder_requests)
    request.encode(loaded.model)
    for hook in hooks:
        hook.remove()
    assert len(made.rows(found[0], 40, ImageRequest(text="where is it?"))) == 40


class Short(covist.Method):
    """Keeps fewer tokens than it was asked for, as methods do that find nothing more to keep."""

    name = "short"

    def enter(self, image: ImageContext, state, count: int) -> covist.Reduction:
        return covist.Reduction(state.restrict(torch.tensor([2, 5])))


class ShortAndHeavy(Short):
    """Its tokens stand for others."""

    def enter(self, image, state, count):
        outcome = super().enter(image, state, count)
        return covist.Reduction(outcome.state.replace(weights=torch.tensor([2.0, 3.0])))


def test_a_selection_that_is_too_short_is_filled_with_the_first_tokens_that_it_left_out():
    loaded, request = embedded("tiny")
    signals = encoded_images(loaded, request)[0].signals
    made = compressor(loaded, {"budget": 5})
    made._method = Short()
    embeddings, side = split(made.rows(signals, 5))
    assert side.offsets[:, 0].tolist() == [0, 1, 2, 3, 5]
    assert torch.equal(embeddings, signals.span[[0, 1, 2, 3, 5]])


def test_representatives_of_others_cannot_be_joined_by_further_tokens():
    loaded, request = embedded("tiny")
    made = compressor(loaded, {"budget": 5})
    made._method = ShortAndHeavy()
    with pytest.raises(CovistError, match="kept 2 of 5 tokens, which stand for others"):
        made.rows(encoded_images(loaded, request)[0].signals, 5)


def test_caches_know_an_image_by_what_its_request_says():
    names = {ImageRequest(budget, text).identify("image") for budget in (None, Count(48)) for text in ("", "where?")}
    assert len(names) == 4 and ImageRequest().identify("image") == "image"


@pytest.mark.parametrize(
    ("sizes", "limit", "parts"),
    [
        ([], 10, []),
        ([4], 10, [(0, 1)]),
        ([4, 4, 4], 10, [(0, 2), (2, 3)]),
        ([20, 4, 4], 10, [(0, 1), (1, 3)]),
        ([4, 20, 4], 10, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_batches_are_split_in_order_at_the_limit(sizes, limit, parts):
    assert split_evenly(sizes, limit) == [slice(*part) for part in parts]
