"""Selectors that treat the views of an image in their own way, against literal references."""

from dataclasses import replace

import pytest
import reference.selectors as literal
import torch
from reference.ops import ranking
from support.images import image
from support.ties import nearest_tie

from covist.methods.published.g_prune import GPrune, gathered
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
