"""FlowCut's walk through the vision tower, against its literal reference and the counts of its description."""

from dataclasses import replace

import numpy as np
import pytest
import reference.encoder as literal
import torch
from support.images import ENCODER_WIDTH, image, inside, tower_of

from covist.contract.encoder import EncoderRead, LayerRun
from covist.methods.layout import allot
from covist.methods.published.flowcut import FlowCut, flow, flow_without_class, leaving_after, walk
from covist.methods.shared import received_attention

COUNTS = [1, 2, 7, 18, 34]  # of 35 tokens, odd on purpose
SEEDS = [0, 1, 2]


def double(tensor):
    return tensor.detach().double().numpy()


def begun(context, count):
    state = FlowCut().begin(context, count).state
    assert state.count == count
    return state


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
    state = begun(context, count)
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
    state = begun(context, 7)
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
    torch.testing.assert_close(flow_without_class(attention, values), torch.from_numpy(expected).float())
    kept = begun(context, 9)
    assert kept.indices.tolist() == sorted(np.argsort(-expected)[:9].tolist())
    torch.testing.assert_close(kept.features, context.signals.embeddings[kept.indices])


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_flowcut_drops_tokens_of_tiles_again_by_the_last_instruction_token(kv_heads):
    state, view = inside(image(), 2, FlowCut(tiles="twice"), kv_heads=kv_heads)
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
