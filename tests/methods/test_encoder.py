"""Methods that read more of the vision tower, against literal references and the facts of their descriptions."""

from dataclasses import replace

import numpy as np
import pytest
import reference.encoder as literal
import torch
from support.images import FakeText, image

from covist.contract.encoder import EncoderRead
from covist.errors import CovistError
from covist.grid import Grid
from covist.methods.create import create_method
from covist.methods.layout import NO_TOKEN, allot, even_cells, neighbours
from covist.methods.published.evocut import STATES, EvoCut, cluster_centres, evolution_scores
from covist.methods.published.hiprune import BESIDE, OBJECTS, WHOLE, HiPrune
from covist.methods.published.prunesid import PruneSID, choose, groups, quotas, survivors
from covist.methods.published.visiontrim import RECEIVED, VisionTrim
from covist.methods.shared import received_attention

COUNTS = [1, 2, 7, 18, 34]  # of 35 tokens, odd on purpose
SEEDS = [0, 1, 2]
NAMES = ["prunesid", "hiprune", "visiontrim", "visiontrim:scores=paper", "flowcut", "evocut"]


def double(tensor):
    return tensor.detach().double().numpy()


def begun(method, context, count):
    state = method.begin(context, count).state
    assert state.count == count
    return state


def contents(state, tokens):
    places = [state.indices.tolist().index(token) for token in tokens]
    return state.features[places]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "no class token"])
@pytest.mark.parametrize("views", [((5, 7),), ((1, 35),), ((3, 5), (4, 5))], ids=str)
@pytest.mark.parametrize("copies", [1, 7])
def test_any_count_of_any_grid_comes_out_exactly(name, class_token, views, copies):
    context = image(views, class_token=class_token, copies=copies)
    for count in COUNTS:
        state = begun(create_method(name), context, count)
        assert state.indices.unique().numel() == count and state.features.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "no class token"])
def test_a_masked_image_keeps_what_is_seen(name, class_token):
    context = image(class_token=class_token)
    visible = torch.rand(35, generator=torch.Generator().manual_seed(3)) > 0.4
    signals = context.signals.restricted(visible)
    seen = replace(context, signals=signals, positions=context.positions[visible])
    for count in (1, 5, int(visible.sum()) - 1):
        assert begun(create_method(name), seen, count).indices.unique().numel() == count


@pytest.mark.parametrize("name", NAMES)
def test_global_random_state_does_not_matter(name):
    torch.manual_seed(1)
    first = begun(create_method(name), image(), 9)
    torch.manual_seed(2)
    second = begun(create_method(name), image(), 9)
    assert torch.equal(first.indices, second.indices) and torch.equal(first.features, second.features)


def test_an_image_encoded_without_the_methods_signals_is_refused():
    context = image()
    bare = replace(context, signals=replace(context.signals, requested={}, tower=None))
    for name in ("hiprune", "visiontrim", "flowcut", "evocut"):
        with pytest.raises(CovistError, match="encode it in a call that runs this method"):
            create_method(name).begin(bare, 9)


# -- PruneSID ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", COUNTS)
def test_prunesid(seed, count):
    context = image(seed=seed)
    hidden, attention = double(context.signals.hidden), double(received_attention(context.signals))
    expected = literal.prunesid(hidden, attention, count, count - 1)
    state = begun(PruneSID(), context, count)
    place = min(set(range(35)) - set(expected))
    assert state.indices.tolist() == sorted([*expected, place])
    projected = context.signals.project(context.signals.class_features[:1])
    torch.testing.assert_close(contents(state, [place]), projected)
    torch.testing.assert_close(contents(state, expected), context.signals.embeddings[expected])


@pytest.mark.parametrize("count", COUNTS)
def test_prunesid_without_a_class_token_gives_its_place_to_a_patch(count):
    context = image(class_token=False)
    hidden, attention = double(context.signals.hidden), double(received_attention(context.signals))
    assert begun(PruneSID(), context, count).indices.tolist() == literal.prunesid(hidden, attention, count, count)


@pytest.mark.parametrize("count", [3, 9, 16])
@pytest.mark.parametrize("shape", [(24, 40), (60, 12)], ids=["few tokens", "many tokens"])
def test_prunesid_groups_from_either_side_of_the_matrix(count, shape):
    hidden = torch.randn(shape, generator=torch.Generator().manual_seed(count))
    assert groups(hidden, count).tolist() == literal.prunesid_groups(double(hidden), count)


def test_prunesid_components_without_variance_own_no_token():
    distinct = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    found = groups(distinct.repeat(8, 1), 16)
    assert found.max() < 4 and torch.equal(found, found[:4].repeat(8))


@pytest.mark.parametrize("budget", [8, 20, 40, 70])
def test_prunesid_suppression_is_the_sequential_one(budget):
    generator = torch.Generator().manual_seed(budget)
    hidden = torch.randn(6, 10, generator=generator).repeat(15, 1) + 0.8 * torch.randn(90, 10, generator=generator)
    hidden, attention = hidden + 0.5, torch.rand(90, generator=generator)
    group = groups(hidden, 5)
    expected = literal.prunesid_survivors(double(hidden), double(attention), group.tolist(), budget)
    similarity = torch.nn.functional.cosine_similarity(hidden[:, None], hidden[None], dim=-1)
    mean = similarity[torch.ones(90, 90).triu(1).bool()].mean()
    found = survivors(similarity, attention, group, budget / 32 * mean)
    assert found.nonzero()[:, 0].tolist() == sorted(expected)
    assert 0 < len(expected) <= 90
    kept = choose(hidden, attention, budget, budget - 1).sort().values.tolist()
    assert kept == literal.prunesid(double(hidden), double(attention), budget, budget - 1)


def test_prunesid_quotas_as_described():
    assert quotas([40, 20, 4], [10, 10, 4], 12, 11) == literal.prunesid_quotas([40, 20, 4], [10, 10, 4], 12, 11)
    assert quotas([40, 20, 4], [10, 5, 1], 10, 9) == [5, 3, 1]  # one each and 6 by 10:5:1, at most 5
    assert quotas([30, 30], [1, 1], 20, 19) == [9, 10]  # limits rise until the budget fits
    assert sum(quotas([100, 0, 3, 50], [20, 0, 1, 2], 64, 63)) == 63
    crowded = [40, *[3] * 19]  # limits of 5 at 64 do not fill the budget and rise by one; those of 10 at 65 do
    assert quotas([60] * 20, crowded, 64, 63)[0] == 6 and quotas([60] * 20, crowded, 65, 64)[0] == 10


# -- HiPrune -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("count", COUNTS)
def test_hiprune(seed, alpha, count):
    context = image(seed=seed)
    context.signals.requested[WHOLE] = lambda: [torch.rand(35, generator=torch.Generator().manual_seed(seed))]
    objects, whole = (double(context.signals.read(requested)[0]) for requested in (OBJECTS, WHOLE))
    expected = literal.hiprune(objects, whole, 5, 7, count, alpha)
    assert begun(HiPrune(alpha), context, count).indices.tolist() == expected


@pytest.mark.parametrize(("budget", "anchors"), [(192, 4), (128, 3), (64, 1), (24, 0)])
def test_hiprune_anchors_of_the_published_budgets(budget, anchors):
    context = image(((24, 24),))
    objects, whole = torch.zeros(576), torch.zeros(576)
    strongest = torch.tensor([100, 300, 401, 500, 560])
    objects[strongest] = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    whole[:400] = 1.0
    whole[strongest] = -1.0
    context.signals.requested.update({OBJECTS: lambda: [objects], WHOLE: lambda: [whole]})
    kept = begun(HiPrune(), context, budget).indices.tolist()
    assert [token in kept for token in strongest.tolist()] == [number < anchors for number in range(5)]


def test_hiprune_neighbours_end_where_the_image_ends():
    table = neighbours(Grid(((2, 3), (1, 2))), BESIDE)
    assert table[2].tolist() == [1, NO_TOKEN, NO_TOKEN, 5]  # the end of the first row
    assert table[3].tolist() == [NO_TOKEN, 4, 0, NO_TOKEN]  # the beginning of the second
    assert table[6].tolist() == [NO_TOKEN, 7, NO_TOKEN, NO_TOKEN]  # another view


def test_hiprune_gives_every_tile_its_share():
    context = image(((4, 4), (8, 8)))
    layer = context.signals.feeding
    tiled = replace(layer, keys=layer.keys.view(5, 16, -1))
    context.signals.feeding = tiled
    kept = begun(HiPrune(), context, 20).indices
    assert (kept // 16).bincount(minlength=5).tolist() == allot(20, [16] * 5) == [4] * 5


# -- VisionTrim --------------------------------------------------------------------------------------------------------


def relation_of(context, clip):
    if clip:
        words = len(FakeText().encode(context.instruction.text))
        text = double(FakeText().encode_padded(context.instruction.text)[0, : 1 + words])  # begin token, no padding
        weight = double(FakeText()._weight)
        return lambda h: literal.cosines(np.concatenate([h @ weight.T, text]))[: len(h), len(h) :]
    words = double(context.instruction.embeddings)

    def relate(h):
        projected = double(context.signals.project(torch.from_numpy(np.asarray(h)).float()))
        return literal.cosines(np.concatenate([projected, words]))[: len(h), len(h) :]

    return relate


@pytest.mark.parametrize("clip", [True, False], ids=["clip", "embeddings"])
@pytest.mark.parametrize("scores", ["coded", "paper"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", COUNTS)
def test_visiontrim(clip, scores, seed, count):
    context = image(seed=seed, clip=clip)
    hidden, attention = double(context.signals.hidden), double(received_attention(context.signals))
    everywhere, itself, of_class = (double(share) for share in context.signals.read(RECEIVED))
    score = literal.visiontrim_coded(attention, everywhere - itself - of_class)
    if scores == "paper":
        score = literal.visiontrim_paper(attention, hidden, 5, 7)
    dominant, targets, merged = literal.visiontrim(score, hidden, relation_of(context, clip), count)
    state = begun(VisionTrim(scores), context, count)
    assert state.indices.tolist() == sorted(dominant + targets)
    torch.testing.assert_close(contents(state, dominant), context.signals.embeddings[dominant])
    if targets:
        expected = context.signals.project(torch.from_numpy(np.array(merged)).float())
        torch.testing.assert_close(contents(state, targets), expected, atol=1e-4, rtol=1e-4)
        assert state.weights.sum() == 35


def test_visiontrim_splits_64_as_published():
    context = image(((8, 16),))
    everywhere, itself, of_class = context.signals.read(RECEIVED)
    score = literal.visiontrim_coded(
        double(received_attention(context.signals)), double(everywhere - itself - of_class)
    )
    state = begun(VisionTrim(), context, 64)
    assert set(np.argsort(-score)[:48].tolist()) <= set(state.indices.tolist())
    assert int((state.weights > 1).sum()) <= 16


def test_visiontrim_without_a_question_complements_by_score():
    context = image(text="")
    context.instruction = replace(context.instruction, read_embeddings=lambda: torch.empty(0, 16))
    attention = double(received_attention(context.signals))
    everywhere, itself, of_class = (double(share) for share in context.signals.read(RECEIVED))
    score = literal.visiontrim_coded(attention, everywhere - itself - of_class)
    assert begun(VisionTrim(), context, 12).indices.tolist() == sorted(np.argsort(-score)[:12].tolist())


# -- EvoCut ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", COUNTS)
def test_evocut(seed, count):
    context = image(seed=seed)
    states = context.signals.read(STATES)
    _, first = even_cells(context.grid, 8)
    expected = literal.evocut_scores([double(own) for own in states], first.tolist())
    torch.testing.assert_close(evolution_scores(states, first).double(), torch.from_numpy(expected), atol=1e-6, rtol=0)
    assert begun(EvoCut(), context, count).indices.tolist() == sorted(literal.ranking(expected)[:count])


def test_evocut_clusters_of_many_tokens_are_as_far_as_ten_iterations_bring_them():
    states = list(torch.randn(2, 300, 5, generator=torch.Generator().manual_seed(4)))
    first = torch.arange(0, 296, 37)
    expected = literal.evocut_scores([double(own) for own in states], first.tolist())
    torch.testing.assert_close(evolution_scores(states, first).double(), torch.from_numpy(expected), atol=1e-6, rtol=0)


def test_evocut_prefers_tokens_that_move_as_no_others_do():
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(36, 10, generator=generator)
    common = torch.randn(2, 10, generator=generator)[torch.arange(36) % 2]
    rare = torch.tensor([5, 17, 30])
    after = before + common + 0.01 * torch.randn(36, 10, generator=generator)
    after[rare] = before[rare] + torch.randn(3, 10, generator=generator)
    scores = evolution_scores([before, after], torch.arange(0, 36, 12) + 1)
    assert set(scores.topk(3).indices.tolist()) == set(rare.tolist())


def test_evocut_centres_are_of_unit_length_and_an_empty_cluster_keeps_its_own():
    directions = torch.nn.functional.normalize(torch.randn(2, 6), dim=-1)[torch.arange(20) % 2]
    twice = torch.tensor([2, 4, 5])  # the second of two equal centres wins no token
    torch.testing.assert_close(cluster_centres(directions, twice), directions[twice])
    spread = torch.nn.functional.normalize(torch.randn(20, 6), dim=-1)
    torch.testing.assert_close(cluster_centres(spread, twice).norm(dim=-1), torch.ones(3))


# -- where layers are --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "count", "has_class", "expected"),
    [
        (OBJECTS, 24, True, 8),  # object layer 9 of CLIP ViT-L
        (OBJECTS, 32, False, 15),  # object layer 16 of Qwen2.5-VL
        (STATES, 24, True, 11),  # from layer 12 of CLIP ViT-L
        (STATES, 32, False, 15),  # from layer 16 of Qwen2.5-VL
        (WHOLE, 24, True, 22),
    ],
)
def test_published_layers(requested, count, has_class, expected):
    assert requested.layer(count, count - 2 if has_class else count - 1, has_class) == expected


def test_a_read_never_lies_beyond_the_layer_that_feeds_the_projector():
    assert STATES.layer(2, 0, True) == 0 and EncoderRead("states", -1).layer(24, 22, True) == 22
