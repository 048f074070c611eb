"""The family without a file: where tokens lie, which patches make them, and what the tower showed."""

import copy
from types import SimpleNamespace

import pytest
import torch
from support.captures import captured
from support.leftovers import fingerprint
from support.zoo.animal import animal
from torch import nn

import covist
from covist.contract.encoder import EncoderRead
from covist.errors import CovistError
from covist.families.folding import CallTap, Folding, blocks, consecutive, places_among
from covist.families.generic import Generic
from covist.families.hooks import Running
from covist.families.layouts import views_of


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


# -- where tokens lie --------------------------------------------------------------------------------------------------

DESCRIBED = {
    "a grid of patches": ({"image_grid_thw": torch.tensor([[1, 8, 12]])}, 24, [(4, 6)]),
    "a grid that is not divisible": ({"spatial_shapes": torch.tensor([[5, 7]])}, 12, [(3, 4)]),
    "sizes in patches": ({"target_sizes": torch.tensor([[16, 8]]), "pixel_values": torch.ones(1, 3, 4, 512)}, 8,
                         [(4, 2)]),
    "sizes in pixels": ({"image_sizes": torch.tensor([[56, 112]])}, 32, [(4, 8)]),
    "two views": ({"image_grids": torch.tensor([[2, 3, 4, 5]])}, 26, [(2, 3), (4, 5)]),
    "places of patches": ({"image_position_ids": torch.tensor([[[0, 0], [3, 1], [-1, -1]]])}, 2, [(1, 2)]),
    "the shape of an image": ({"pixel_values": torch.ones(1, 3, 32, 64)}, 18, [(3, 6)]),
    "nothing but a square number": ({}, 16, [(4, 4)]),
    "nothing": ({}, 22, [(1, 22)]),
    "an argument that contradicts the tokens": ({"image_grid_thw": torch.tensor([[1, 8, 12]])}, 25, [(5, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("case", DESCRIBED)
def test_layouts_follow_what_describes_them(case):
    arguments, tokens, expected = DESCRIBED[case]
    assert views_of(arguments, [tokens], is_video=False) == [expected]


def test_the_frames_of_a_video_are_views():
    arguments = {"video_grid_thw": torch.tensor([[4, 8, 8]]), "image_grid_thw": torch.tensor([[1, 2, 2]])}
    assert views_of(arguments, [64], is_video=True) == [[(4, 4)] * 4]
    arguments["video_grid_thw"] = torch.tensor([[3, 8, 8]])
    assert views_of(arguments, [16], is_video=True) == [[(4, 4)]]  # an encoder that makes one of all frames


# -- which patches make a token ----------------------------------------------------------------------------------------


def test_blocks_are_the_squares_of_each_view():
    views = [(2, 3), (1, 2)]
    expected, first = [], 0
    for rows, columns in views:
        for row in range(rows):
            for column in range(columns):
                corner = first + 2 * row * 2 * columns + 2 * column
                expected.append([corner, corner + 1, corner + 2 * columns, corner + 2 * columns + 1])
        first += 4 * rows * columns
    assert blocks(views, 4).tolist() == expected


def test_rows_are_found_in_another_order_and_among_padding():
    embeddings = torch.randn(9, 5)
    order = torch.randperm(9)
    assert torch.equal(places_among(embeddings[order], embeddings), order.argsort())
    padded = torch.cat([embeddings[:4], torch.zeros(3, 5), embeddings[4:], torch.zeros(2, 5)])
    assert places_among(padded, embeddings).tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 11]
    assert places_among(padded, embeddings + 1e-3) is None
    assert places_among(embeddings[:3], embeddings) is None


def test_each_copy_of_a_repeated_image_has_its_own_patches():
    subject = animal("qwen2_5_vl")
    first, second = captured(subject.model, subject.ask([0, 0]))
    (alone,) = captured(subject.model, subject.ask([0]))
    for one in (first, second):
        torch.testing.assert_close(one.attention, alone.attention)
        torch.testing.assert_close(one.keys, alone.keys)


class Shuffling(nn.Module):
    """Joins squares of 2 x 2 patches of square views, then projects them."""

    def __init__(self, inside):
        super().__init__()
        self.inside, self.linear = inside, nn.Linear(12, 7)

    def join(self, patches):  # [views, patches, 3]
        side = int(patches.shape[1] ** 0.5)
        cells = patches.view(len(patches), side // 2, 2, side // 2, 2, 3).transpose(2, 3)
        return cells.reshape(len(patches), -1, 12)

    def forward(self, patches):
        return self.linear(self.join(patches) if self.inside else patches)


class Pooling(nn.Module):
    """Averages squares of whole views of 4 x 4 patches, of which it knows the size."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 7)

    def forward(self, patches):
        cells = patches.view(len(patches), 4, 4, 3).permute(0, 3, 1, 2)
        return self.linear(nn.functional.avg_pool2d(cells, 2).flatten(2).transpose(1, 2))


class Encoder(nn.Module):
    def __init__(self, projector):
        super().__init__()
        self.norm, self.projector = nn.LayerNorm(3), projector

    def forward(self, pixels):
        patches = self.norm(pixels)
        outside = isinstance(self.projector, Shuffling) and not self.projector.inside
        return self.projector(self.projector.join(patches) if outside else patches)


def folding_of(projector, views=2):
    encoder, running = Encoder(projector), Running()
    tap = CallTap([encoder.norm, encoder.projector], running)
    running.calls = 1
    made = encoder(torch.randn(views, 16, 3))
    running.calls = 0
    return Folding(made.flatten(0, 1), [(2, 2)] * views, tap.take())


def test_a_projector_that_joins_patches_is_applied_to_single_tokens():
    folding = folding_of(Shuffling(inside=True))
    assert torch.equal(folding.patches_of(4), blocks([(2, 2)] * 2, 4))
    torch.testing.assert_close(folding.projector(folding.features), folding.embeddings)


def test_patches_that_are_joined_before_the_projector_are_found():
    folding = folding_of(Shuffling(inside=False))
    assert torch.equal(folding.patches_of(4), blocks([(2, 2)] * 2, 4))
    torch.testing.assert_close(folding.projector(folding.features), folding.embeddings)


def test_the_patches_of_a_projector_that_needs_whole_views_are_found_but_it_is_not_applied_to_tokens():
    folding = folding_of(Pooling())
    assert folding.projector is None
    assert torch.equal(folding.patches_of(4), blocks([(2, 2)] * 2, 4))


class Mixing(nn.Module):
    """Every token depends on every patch: nothing says which patches are its own."""

    def forward(self, patches):
        return (patches.mean(1, keepdim=True) + patches[:, :4]).repeat(1, 1, 3)[..., :7]


def test_tokens_of_all_patches_have_no_patches_of_their_own():
    folding = folding_of(Mixing())
    assert folding.projector is None and folding.patches_of(4) is None


# -- what the tower showed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "layout"), [("gemma3", blocks), ("aya_vision", blocks), ("paligemma", consecutive)])
def test_evidence_is_the_attention_that_tokens_receive_in_the_towers_layer(name, layout):
    subject = animal(name)
    family, inputs = Generic(subject.model), subject.prompt()
    (signals,) = captured(subject.model, inputs, family=family)
    module = copy.deepcopy(family.base.vision_tower)
    module.set_attn_implementation("eager")
    seen = module(inputs["pixel_values"], output_attentions=True).attentions[family.feeding_state]
    received = seen[0].mean((0, 1))  # over heads and queries
    patches = layout(signals.grid.views, len(received) // len(signals.span))
    expected = received[patches].sum(1)
    torch.testing.assert_close(signals.attention[0, 0], expected, atol=1e-6, rtol=1e-4)
    assert not signals.uniform and signals.attention.std() > 1e-5


@pytest.mark.parametrize("name", ["internvl", "mistral3"])
def test_signals_are_those_of_the_families_with_files(name):
    subject = animal(name)
    inputs, _ = subject.batch()
    ours, theirs = captured(subject.model, inputs, family=Generic(subject.model)), captured(subject.model, inputs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.attention, other.attention, atol=1e-7, rtol=1e-5)
        assert torch.equal(one.keys, other.keys) and one.grid == other.grid


@pytest.mark.parametrize("name", ["fast_vlm", "emu3"])
def test_uniform_attention_is_reported(name):
    subject = animal(name)
    with covist.compress(subject.model, method="covist-max", budget=4) as handle:
        subject.model(**subject.prompt())
    assert "evidence" in repr(handle.report) and "cannot be read" in repr(handle.report)
    assert handle.report.to_dict()["images"][0]["uniform_attention"]


def test_read_attention_is_not_mentioned():
    subject = animal("gemma3")
    with covist.compress(subject.model, method="covist-max", budget=4) as handle:
        subject.model(**subject.prompt())
    assert "cannot be read" not in repr(handle.report)


def test_an_interrupted_encoding_leaves_nothing_for_the_next(monkeypatch):
    subject = animal("gemma3")
    family, inputs, found = Generic(subject.model), subject.prompt(), []
    expected = captured(subject.model, inputs, family=family)[0].attention
    hooks = family.capture(found.extend)
    projector = family.base.multi_modal_projector

    def interrupted(module, inputs):
        raise KeyboardInterrupt

    stop = projector.register_forward_pre_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        subject.model(**inputs)
    stop.remove()
    family.base.vision_tower(inputs["pixel_values"])  # a call beside the model keeps nothing either
    subject.model(**inputs)
    for hook in hooks:
        hook.remove()
    assert len(found) == 1 and torch.equal(found[0].attention, expected)


@pytest.mark.parametrize("name", ["gemma3", "qwen3_5", "llama4"])
def test_a_capture_that_fails_changes_nothing(name):
    subject = animal(name)
    before = fingerprint(subject.model)
    impossible = EncoderRead("received", 99)
    with pytest.raises(IndexError):
        covist.compress(subject.model, method=Asking(impossible), budget=4)
    assert fingerprint(subject.model) == before


class Asking(covist.Method):
    name = "asking"

    def __init__(self, request):
        self.encoder_requests = (request,)

    def select(self, image, count):
        return torch.arange(count)


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_models_without_a_text_model_or_placeholder_are_refused():
    with pytest.raises(CovistError, match="no text model"):
        Generic(nn.Linear(2, 2))
    model = copy.deepcopy(animal("gemma3").model)
    model.config = SimpleNamespace(model_type="gemma3")
    with pytest.raises(CovistError, match="names no image token"):
        Generic(model)
