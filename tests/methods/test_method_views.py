"""Selectors that treat the views of an image in their own way, against literal references."""

from dataclasses import replace

import pytest
import reference.selectors as literal
import torch
from reference.ops import ranking
from support.images import image
from support.ties import nearest_tie

from covist.grid import Grid
from covist.methods.published.g_prune import GPrune, gathered
from covist.methods.published.globalcom2 import GlobalCom2, Tiles, class_logits, fitting_counts
from covist.methods.published.otprune import OTPrune


def shown(embeddings, views=((5, 7),), **options):
    context = image(views, **options)
    context.signals = replace(context.signals, span=embeddings)
    return context


def alike(tokens, seed, width=6):
    """Embeddings of which some resemble each other [tokens, width]."""
    generator = torch.Generator().manual_seed(seed)
    groups, noise = (torch.randn(*size, width, generator=generator) for size in ((6,), (tokens,)))
    return groups[torch.arange(tokens) % 6] + 0.3 * noise


# -- G-Prune ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_g_prune_scores_by_a_walk_over_similar_tokens(seed):
    embeddings = alike(35, seed)
    if seed == 2:
        embeddings[3] = 0  # as published, it leads everywhere
    expected = torch.tensor(literal.g_prune_scores(embeddings.double().numpy())).double()
    torch.testing.assert_close(gathered(embeddings), expected, atol=1e-6, rtol=1e-5)
    for count in (1, 7, 18, 34):
        assert nearest_tie(expected, count) > 1e-5
        kept = GPrune().begin(shown(embeddings), count).state.indices
        assert kept.tolist() == sorted(ranking(expected.tolist())[:count])


def test_g_prune_ranks_every_view_separately_with_the_same_share():
    embeddings = alike(12 + 35, 3)
    kept = GPrune().begin(shown(embeddings, ((3, 4), (5, 7))), 16).state.indices  # 4.09 and 11.9
    overview, sharper = (literal.g_prune_scores(part.double().numpy()) for part in embeddings.split([12, 35]))
    expected = [*sorted(ranking(overview)[:4]), *sorted(12 + i for i in ranking(sharper)[:12])]
    assert kept.tolist() == expected


@pytest.mark.parametrize("method", [GPrune(), OTPrune()], ids=lambda method: method.name)
@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_first_of_several_copies_comes_first(method, count):
    embeddings = alike(10, 4).repeat(3, 1)
    kept = method.begin(shown(embeddings, ((5, 6),)), count).state.indices.tolist()
    for token in kept:
        assert token < 10 or token - 10 in kept


def test_otprune_leaves_out_channels_of_zeros():
    embeddings = alike(35, 5)
    padded = torch.cat([embeddings, torch.zeros(35, 2)], dim=1)
    expected = OTPrune().select(shown(embeddings), 9)
    assert torch.equal(OTPrune().select(shown(padded), 9), expected)


# -- GlobalCom2 -------------------------------------------------------------------------------------------------------


def test_globalcom2_reads_the_class_tokens_logits_of_the_last_layer():
    context = image()
    layer = context.signals.layers[3]
    width = layer.keys.shape[-1] // layer.heads
    products = (layer.class_query * layer.keys[0]).unflatten(-1, (layer.heads, width)).sum(-1) / width**0.5
    torch.testing.assert_close(class_logits(context.signals), products.mean(-1))
    kept = GlobalCom2().begin(context, 9).state.indices.tolist()
    assert kept == sorted(ranking(products.mean(-1).tolist())[:9])  # no overview to divide


def test_globalcom2_without_a_class_token_follows_the_received_attention():
    context = image(class_token=False)
    received = context.signals.packed(context.signals.attention.mean(1))
    assert GlobalCom2().begin(context, 9).state.indices.tolist() == sorted(ranking(received.tolist())[:9])


def test_globalcom2_shares_in_proportion_where_the_arrangement_is_unknown():
    context = image(((4, 4), (4, 4), (2, 4)))
    context.signals.grid = Grid(context.grid.views, "apart")
    kept = GlobalCom2().begin(context, 10).state.indices
    assert context.grid.view_numbers()[kept].bincount().tolist() == [4, 4, 2]
    scores = class_logits(context.signals).tolist()
    assert kept[:4].tolist() == sorted(ranking(scores[:16])[:4])


def test_tiles_are_found_by_the_size_of_the_overview():
    assert Tiles(((10, 6), (4, 4))).numbers(torch.device("cpu"))[-16:].tolist() == [0] * 16  # the overview comes last
    tiles = Tiles(((4, 4), (10, 6)))  # 3 x 2 crops of 4 x 4 without a border of padding
    crops = tiles.numbers(torch.device("cpu"))[16:].view(10, 6)
    assert (tiles.rows, tiles.columns) == (3, 2)
    assert crops[:, 0].tolist() == [1] * 3 + [3] * 4 + [5] * 3 and crops[0].tolist() == [1] * 3 + [2] * 3


def test_a_partly_masked_image_keeps_tokens_that_are_left():
    context = image(((4, 4), (8, 6)))
    visible = torch.arange(64) % 5 != 0
    context.signals = context.signals.restricted(visible)
    context.positions = context.positions[visible]
    for count in (1, 20, 50):
        assert GlobalCom2().begin(context, count).state.count == count


@pytest.mark.parametrize("sizes", [[16, 12, 12, 12], [16, 1, 0, 40], [9, 9]])
def test_counts_reach_every_total_and_never_exceed_a_tile(sizes):
    rates = [1.0, 1.4, 0.7, 0.9][: len(sizes)]
    before = [0] * len(sizes)
    for count in range(1, sum(sizes) + 1):
        counts = fitting_counts(sizes, rates, count)
        assert sum(counts) == count and all(own <= size for own, size in zip(counts, sizes, strict=True))
        assert all(now >= then for now, then in zip(counts, before, strict=True)), "more tokens take none away"
        before = counts


def test_counts_are_the_published_ones_at_a_published_total():
    sizes, rates = [144, 96, 96, 96, 96], [1.0, 0.9928, 1.1377, 1.0403, 0.8292]
    for ratio in (0.05, 0.1, 0.25, 0.5, 0.8):
        published = [int(size * min(1.0, ratio * rate)) for size, rate in zip(sizes, rates, strict=True)]
        assert fitting_counts(sizes, rates, sum(published)) == published
