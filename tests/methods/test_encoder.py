"""Methods that read more of the vision tower, against literal references and the facts of their descriptions."""

from dataclasses import replace

import numpy as np
import pytest
import reference.encoder as literal
import torch
from support.images import ENCODER_WIDTH, FakeText, image, inside, tower_of

from covist.contract.encoder import EncoderRead, LayerRun, Tower
from covist.errors import CovistError
from covist.grid import Grid
from covist.methods._layout import NO_TOKEN, allot, even_cells, neighbours
from covist.methods._shared import received_attention
from covist.methods.create import create_method
from covist.methods.evocut import STATES, EvoCut, cluster_centres, evolution_scores
from covist.methods.flowcut import FlowCut, flow, flow_without_class, leaving_after, walk
from covist.methods.hiprune import BESIDE, OBJECTS, WHOLE, HiPrune
from covist.methods.prunesid import PruneSID, choose, groups, quotas, survivors
from covist.methods.visiontrim import RECEIVED, VisionTrim

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


def test_what_was_not_encoded_for_a_method_is_refused():
    context = image()
    bare = replace(context, signals=replace(context.signals, asked={}, tower=None))
    for name in ("hiprune", "visiontrim", "flowcut", "evocut"):
        with pytest.raises(CovistError, match="encode it in a call that runs the method"):
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
    context.signals.asked[WHOLE] = lambda: [torch.rand(35, generator=torch.Generator().manual_seed(seed))]
    objects, whole = (double(context.signals.read(wanted)[0]) for wanted in (OBJECTS, WHOLE))
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
    context.signals.asked.update({OBJECTS: lambda: [objects], WHOLE: lambda: [whole]})
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
    context.instruction = replace(context.instruction, embeddings=torch.empty(0, 16))
    attention = double(received_attention(context.signals))
    everywhere, itself, of_class = (double(share) for share in context.signals.read(RECEIVED))
    score = literal.visiontrim_coded(attention, everywhere - itself - of_class)
    assert begun(VisionTrim(), context, 12).indices.tolist() == sorted(np.argsort(-score)[:12].tolist())


# -- FlowCut -----------------------------------------------------------------------------------------------------------


def literal_run(tower):
    def run(layer, states):
        ran = tower.run(layer, torch.from_numpy(states).float())
        return double(ran.states), double(ran.attention), double(ran.values)

    return run


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", COUNTS)
def test_flowcut(seed, count):
    context = image(seed=seed)
    tower = context.signals.tower
    kept, states, _ = literal.flowcut(double(tower.entry[0]), literal_run(tower), 4, count)
    state = begun(FlowCut(), context, count)
    assert state.indices.tolist() == kept
    expected = context.signals.project(torch.from_numpy(states).float())
    torch.testing.assert_close(state.features, expected, atol=1e-4, rtol=1e-4)


def test_flowcut_walks_a_published_tower_down_to_its_count_at_layer_21():
    patches = torch.randn(60, ENCODER_WIDTH, generator=torch.Generator().manual_seed(5)) / 4
    tower, ran = tower_of(patches, seed=5, layers=24, feature_layers=(22,)), []

    def run(layer, states):
        ran.append(len(states))
        return tower.run(layer, states)

    kept, states = walk(replace(tower, run=run), 0, torch.arange(60), 11)
    expected, expected_states, counts = literal.flowcut(double(tower.entry[0]), literal_run(tower), 22, 11)
    assert kept.tolist() == expected and ran == counts and len(ran) == 23
    assert ran[0] == ran[1] == 61 and ran[22] == 12 and ran[21] > 12
    assert all(ran[layer] == ran[layer + 1] for layer in range(0, 21, 2))  # r is odd after even layers: 21 at first
    torch.testing.assert_close(states, torch.from_numpy(expected_states).float(), atol=1e-3, rtol=1e-3)


def test_flowcut_drops_more_the_sharper_the_attention_and_the_fewer_layers_are_left():
    def ran(attention):
        return LayerRun(torch.empty(0), torch.tensor([[0.0, *attention]]), torch.empty(0))

    even, sharp = ran([0.25] * 4), ran([0.97, 0.01, 0.01, 0.01])
    assert leaving_after(even, 1, 4) == 0 and leaving_after(sharp, 1, 2) == 2 and leaving_after(sharp, 1, 3) == 0
    assert leaving_after(even, 1, 0) == 3


def test_flowcut_tiles_walk_alone_and_padding_leaves_first():
    context = image(((2, 4), (3, 4)))
    generator = torch.Generator().manual_seed(2)
    pack = torch.cat([torch.arange(8), torch.arange(10, 22)])  # of two tiles of 11 patches
    entry = torch.cat([tower_of(torch.randn(11, ENCODER_WIDTH, generator=generator), seed).entry for seed in (0, 1)])
    tower = replace(tower_of(torch.randn(11, ENCODER_WIDTH, generator=generator), 0), entry=entry)
    layer = context.signals.feeding
    context.signals.feeding = replace(layer, keys=torch.randn(2, 11, ENCODER_WIDTH, generator=generator))
    context.signals.tower, context.signals.pack = tower, pack
    state = begun(FlowCut(), context, 7)
    tile = pack // 11
    assert tile[state.indices].bincount().tolist() == allot(7, tile.bincount().tolist())
    share = int((tile[state.indices] == 1).sum())
    own, features = walk(tower, 1, pack[tile == 1] - 11, share)
    assert state.indices[tile[state.indices] == 1].tolist() == (own + int((tile == 0).sum())).tolist()
    torch.testing.assert_close(state.features[-share:], context.signals.project(features))


def test_flowcut_takes_every_layer_that_feeds_the_projector():
    tower = tower_of(torch.randn(12, ENCODER_WIDTH), seed=0, feature_layers=(4, 1))
    kept, features = walk(tower, 0, torch.arange(12), 5)
    assert features.shape == (5, 2 * ENCODER_WIDTH)
    second = tower.run(1, tower.run(0, tower.entry[0]).states).states[1:][kept]
    torch.testing.assert_close(features[:, ENCODER_WIDTH:], second)


def test_flowcut_in_a_tower_of_one_layer():
    tower = tower_of(torch.randn(12, ENCODER_WIDTH), seed=0, feature_layers=(0,))
    kept, features = walk(tower, 0, torch.arange(12), 5)
    ran = tower.run(0, tower.entry[0])
    assert kept.tolist() == flow(ran).topk(5).indices.sort().values.tolist()
    torch.testing.assert_close(features, ran.states[1:][kept])


def test_flowcut_without_a_class_token_reads_the_score_of_one_layer():
    context = image(class_token=False)
    attention = received_attention(context.signals)
    (values,) = context.signals.read(EncoderRead("values"))
    heads = double(values.transpose(0, 1))
    share = double(attention) / double(attention).sum()
    class_value = [sum(a * v for a, v in zip(share, own, strict=True)) for own in heads]
    alike = np.mean(
        [literal.softmax(np.array([own @ v for v in h])) for own, h in zip(class_value, heads, strict=True)], 0
    )
    expected = (share + alike / alike.sum()) * np.abs(heads.mean(0)).sum(-1)
    torch.testing.assert_close(flow_without_class(attention, values).double(), torch.from_numpy(expected))
    kept = begun(FlowCut(), context, 9)
    assert kept.indices.tolist() == sorted(np.argsort(-expected)[:9].tolist())
    torch.testing.assert_close(kept.features, context.signals.embeddings[kept.indices])


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_flowcut_drops_tokens_of_tiles_again_by_the_last_instruction_token(kv_heads):
    state, view = inside(image(), depth=2, observed_layer=1, kv_heads=kv_heads)
    row = torch.tensor([view.last_instruction_row])
    queries, keys = double(view.queries(row)), double(view.keys(view.visual).repeat_interleave(4 // kv_heads, 0))
    values, own = double(view.values(view.visual)), double(view.values(row))
    root = np.sqrt(queries.shape[-1])
    attention = np.mean([literal.softmax(k @ q[0] / root) for q, k in zip(queries, keys, strict=True)], 0)
    alike = np.mean([literal.softmax(v @ o[0] / root) for v, o in zip(values, own, strict=True)], 0)
    expected = (attention + alike) * np.abs(values.mean(0)).sum(-1)
    kept = FlowCut("twice").reduce(state, view, 9).state.indices.tolist()
    assert kept == sorted(np.argsort(-expected)[:9].tolist())


def test_flowcut_counts_of_tiles_have_the_budget_for_a_layer_mean():
    schedule = FlowCut("twice").schedule(32, 320, 2880)
    assert schedule.stages == ((0, 731), (2, 293)) and abs(schedule.mean - 320) < 0.5
    assert FlowCut().schedule(32, 320, 2880).stages == ((0, 320),)
    published = FlowCut("nominal")
    assert published.schedule(32, 320, 2880).stages == ((0, 800), (2, 320))  # five tiles of 160
    assert published.schedule(32, 320, 2880).mean == 350 and published.counts == "nominal"
    assert published.schedule(32, 35, 35).tokens_per_layer == (35,) * 32
    for layers, budget, tokens in ((1, 5, 35), (2, 1, 35), (8, 34, 35), (32, 2000, 2880), (3, 20, 35)):
        found = FlowCut("twice").schedule(layers, budget, tokens)
        assert list(found.tokens_per_layer) == sorted(found.tokens_per_layer, reverse=True)
        assert found.tokens_per_layer[0] <= tokens and abs(found.mean - budget) <= 0.5


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
    ("wanted", "count", "has_class", "expected"),
    [
        (OBJECTS, 24, True, 8),  # object layer 9 of CLIP ViT-L
        (OBJECTS, 32, False, 15),  # object layer 16 of Qwen2.5-VL
        (STATES, 24, True, 11),  # from layer 12 of CLIP ViT-L
        (STATES, 32, False, 15),  # from layer 16 of Qwen2.5-VL
        (WHOLE, 24, True, 22),
    ],
)
def test_published_layers(wanted, count, has_class, expected):
    assert wanted.layer(count, count - 2 if has_class else count - 1, has_class) == expected


def test_a_read_never_lies_beyond_the_layer_that_feeds_the_projector():
    assert STATES.layer(2, 0, True) == 0 and EncoderRead("states", -1).layer(24, 22, True) == 22


def test_a_tower_moves_to_a_device():
    tower = Tower(torch.ones(1, 3, 2), lambda layer, states: LayerRun(states, states, states), (0,))
    assert tower.on(torch.device("meta")).entry.device.type == "meta"
