"""Rivals that reduce before the decoder and again inside it, or merge inside it, against literal references."""

from types import SimpleNamespace

import pytest
import reference.two_stage as literal
import torch
from reference.ops import softmax
from reference.selectors import divprune
from support.images import BEFORE, image, inside
from support.ties import contents

from covist.errors import CovistError
from covist.grid import Grid
from covist.methods.create import create_method
from covist.methods.layout import windows
from covist.methods.published._raters import pointing
from covist.methods.published.apet import ApET, approximation_errors
from covist.methods.published.dart import Dart
from covist.methods.published.e2s_pruner import E2SPruner, combined, head_opinion, retained
from covist.methods.published.mob import MoB
from covist.methods.published.tops import TOPS, balanced
from covist.methods.published.vlm_pruner import VLMPruner, diagonals_apart, grown, liveliest_channels
from covist.methods.published.wtr import WtrDart, WtrDivPrune
from covist.methods.shared import cosine, received_attention

NAMES = ["apet", "e2s-pruner", "mob", "tops", "vlm-pruner", "wtr-dart", "wtr-divprune"]
BEFORE_TOO = ["apet", "tops", "wtr-divprune"]
ODD_VIEWS = [((5, 7),), ((3, 3), (2, 6)), ((1, 23),)]


@pytest.fixture(params=[4, 2], ids=["multi-head", "grouped-query"])
def kv_heads(request):
    return request.param


def looked_at(method, kv_heads=4, seed=0, depth=2, views=((5, 7),), copies=1):
    return inside(image(views, seed), depth, method, seed, kv_heads, copies)


def indices(outcome):
    return outcome.state.indices.tolist()


def shorter(view, state):
    """The view of a later depth at which only the representatives of a state are left."""
    rows = torch.cat([torch.arange(BEFORE), view.visual[0] + state.indices, view.text])
    text = torch.arange(len(rows) - len(view.text), len(rows))
    own = {name: getattr(view, name)[rows] for name in ("hidden", "observed", "positions")}
    rotary = tuple(part[rows] for part in view.rotary)
    visual = torch.arange(BEFORE, BEFORE + state.count)
    return type(view)(**{**vars(view), **own, "rotary": rotary, "visual": visual, "text": text})


# -- ApET -------------------------------------------------------------------------------------------------------------


def start_of(seed, tokens):
    return int(torch.randint(tokens, (1,), generator=torch.Generator().manual_seed(seed)))


def assert_apet(state, expected, project=lambda own: own):
    content, members = expected
    assert state.indices.tolist() == sorted(content)
    wanted = project(torch.stack([torch.from_numpy(content[i]) for i in sorted(content)]).float())
    torch.testing.assert_close(state.features, wanted, atol=1e-4, rtol=1e-4)
    assert state.weights.tolist() == [1 + len(members.get(i, ())) for i in sorted(content)]


@pytest.mark.parametrize("count", [1, 2, 9, 19, 20, 34])
@pytest.mark.parametrize(("seed", "copies"), [(0, 1), (3, 1), (0, 4)])
def test_apet_keeps_what_its_basis_cannot_approximate(count, seed, copies):
    context = image(seed=1, copies=copies)
    hidden = context.signals.hidden
    expected = literal.apet(hidden.double().numpy(), count, start_of(seed, len(hidden)))
    assert_apet(ApET(seed=seed).begin(context, count).state, expected, context.signals.project)


@pytest.mark.parametrize("count", [1, 6, 20])
def test_apet_does_the_same_on_hidden_states_and_writes_them(count):
    method = ApET()
    state, view = looked_at(method, views=((6, 6),))
    view.observed = view.hidden  # as it is where the layer to come is observed
    expected = literal.apet(state.features.double().numpy(), count, start_of(0, 36))
    reduced = method.reduce(state, view, count).state
    assert_apet(reduced, expected)
    assert reduced.weights.sum() == 36


def test_apet_adds_the_weights_of_its_first_stage():
    method, context = ApET(), image(seed=2)
    first = method.begin(context, 20).state
    _, view = looked_at(method)
    view = shorter(view, first)
    second = method.reduce(first.with_features(view.hidden[view.visual]), view, 7).state
    assert second.weights.sum() == first.weights.sum() == context.grid.size


def test_apets_basis_has_no_error_and_copies_in_it_do_no_harm():
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    errors = approximation_errors(rows.repeat(3, 1), torch.tensor([0, 4, 1]))
    assert errors[[0, 1, 4, 5, 8, 9]].max() < 1e-4 < errors[[2, 3, 6, 7]].min()


def test_another_seed_starts_apet_elsewhere():
    kept = {tuple(indices(ApET(seed=seed).begin(image(((8, 8),)), 20))) for seed in range(4)}
    assert len(kept) > 1


# -- WTR --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9, 34])
def test_wtr_begins_as_its_base_does(kv_heads, count):
    context = image(seed=4)
    expected = divprune(context.signals.embeddings.double().numpy(), count)
    assert indices(WtrDivPrune().begin(context, count)) == expected
    state, view = looked_at(WtrDart(), kv_heads, depth=1)
    assert indices(WtrDart().reduce(state, view, count)) == indices(Dart().reduce(state, view, count))


@pytest.mark.parametrize("make", [WtrDivPrune, WtrDart])
def test_wtr_ends_with_a_random_choice_that_depends_only_on_seed_and_image(make):
    drawn = []
    for seed, picture, global_seed in ((0, 0, 1), (0, 0, 2), (1, 0, 1), (0, 5, 1)):
        torch.manual_seed(global_seed)
        state, view = looked_at(make(), seed=picture, depth=4)
        state = state.restrict(torch.arange(3, 33))
        before = torch.get_rng_state()
        drawn.append(indices(make(seed=seed).reduce(state, view, 8)))
        assert torch.equal(torch.get_rng_state(), before)
        assert len(set(drawn[-1])) == 8 and set(drawn[-1]) <= set(range(3, 33))
    assert drawn[0] == drawn[1] and drawn[0] != drawn[2] and drawn[0] != drawn[3]


def test_wtr_ends_at_random_too_where_its_first_cut_keeps_everything():
    assert WtrDart().schedule(32, 500, 576).tokens_per_layer[19] == 576
    state, view = looked_at(WtrDart(), depth=4)
    assert indices(WtrDart().reduce(state, view, 8)) == indices(WtrDivPrune().reduce(state, view, 8))


def test_wtrs_random_choice_is_uniform():
    state, view = looked_at(WtrDivPrune())
    state = state.restrict(torch.arange(10))
    times = torch.zeros(35)
    for seed in range(600):
        times[WtrDivPrune(seed=seed).reduce(state, view, 3).state.indices] += 1
    assert times[:10].min() > 130 and times[:10].max() < 230  # 180 expected, with a deviation of 11


@pytest.mark.parametrize("name", ["apet", "wtr-dart", "wtr-divprune"])
def test_a_seed_is_an_integer(name):
    with pytest.raises(CovistError, match="seed='x': choose an integer"):
        create_method(f"{name}:seed=x")


# -- MoB --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 16, 28, 40, 63])
@pytest.mark.parametrize(("seed", "copies"), [(0, 1), (1, 1), (0, 3)])
def test_mob_covers_prompt_and_image(kv_heads, count, seed, copies):
    method = MoB()
    state, view = looked_at(method, kv_heads, seed, views=((8, 8),), copies=copies)
    assert view.observed_layer == 1
    named, kept = literal.mob(view, count)
    assert 1 <= len(named) <= max(1, count // 2)
    assert contents(indices(method.reduce(state, view, count)), copies) == contents(kept, copies)


def test_mob_without_text_lets_the_last_prompt_token_be_the_anchor():
    method = MoB()
    state, view = looked_at(method)
    last = view.text[-1:]
    view.text = last
    expected = literal.mob(view, 10)[1]
    view.text = last[:0]
    assert indices(method.reduce(state, view, 10)) == expected


# -- VLM-Pruner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 5, 20, 60])
@pytest.mark.parametrize(("alike", "copies"), [(0.0, 1), (2.0, 1), (0.0, 2)])
def test_vlm_pruner_grows_from_pivots_and_absorbs_the_rest(kv_heads, count, alike, copies):
    method = VLMPruner()
    state, view = looked_at(method, kv_heads, seed=3, views=((8, 8),), copies=copies)
    view.hidden[view.visual] += alike  # so that most tokens are above the first threshold
    state = state.with_features(view.hidden[view.visual])
    reduced = method.reduce(state, view, count).state
    expected = literal.vlm_pruner(view, state.coordinates.tolist(), count)
    assert reduced.indices.tolist() == sorted(expected)
    shown = contents(sorted(expected), copies)
    for place, index in enumerate(sorted(expected)):
        content, members = expected[index]
        if shown.count(index // copies) == 1:  # of two copies that stay, a token may join either
            torch.testing.assert_close(reduced.features[place], torch.from_numpy(content).float(), atol=1e-4, rtol=1e-4)
            assert reduced.weights[place] == 1 + len(members)
    assert reduced.weights.sum() == state.count


def test_vlm_pruner_reads_the_channels_that_vary_most():
    states = torch.randn(40, 300, generator=torch.Generator().manual_seed(0)) * torch.arange(300)
    deviation = states.double().std(0)
    assert torch.equal(liveliest_channels(states), states[:, deviation.argsort(descending=True)[:256].sort().values])


def test_vlm_pruner_prefers_near_tokens_among_equals():
    apart = diagonals_apart(Grid(((1, 40),)).places())
    cosines = torch.full((40, 40), 0.7).fill_diagonal_(1)
    assert grown(torch.tensor([20]), cosines, apart, 5).tolist() == [18, 19, 20, 21, 22]


def test_in_vlm_pruner_views_that_are_apart_are_one_diagonal_away():
    apart = diagonals_apart(Grid(((2, 2), (2, 2)), "apart").places())
    assert apart[:4, 4:].unique().tolist() == [1.0] and apart[0, 3] == pytest.approx(0.5, abs=1e-5)


# -- TOPS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 9, 34])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "no class token"])
def test_tops_before_the_decoder(count, copies, class_token):
    context = image(seed=6, class_token=class_token, copies=copies)
    attention = received_attention(context.signals).double().tolist()
    expected = literal.tops(attention, context.signals.embeddings.double().numpy(), count, 0.5)
    assert contents(TOPS().select(context, count).tolist(), copies) == contents(expected, copies)


@pytest.mark.parametrize(("count", "weight"), [(1, 1.0), (5, 1.0), (6, 0.5), (20, 0.5)])
def test_tops_inside_the_decoder(kv_heads, count, weight):
    method = TOPS()
    state, view = looked_at(method, kv_heads, seed=2)
    assert view.observed_layer == view.depth == 2
    relevance = literal.tops_relevance(view)
    expected = literal.tops(relevance, view.hidden[view.visual].double().numpy(), count, weight)
    assert indices(method.reduce(state, view, count)) == sorted(expected)


@pytest.mark.parametrize(("budget", "weight"), [(192, 0.5), (128, 0.5), (64, 1.0), (32, 1.0)])
@pytest.mark.parametrize("counts", ["nominal", "average"])
def test_tops_covers_more_at_small_budgets(budget, weight, counts):
    method = TOPS(counts=counts)
    for depth, count in method.schedule(32, budget, 576).stages[1:]:
        view = SimpleNamespace(depth=depth, decoder=SimpleNamespace(layers=32, reads=lambda layer: True))
        assert method.coverage_weight(view, count, 576) == weight


def test_tops_raters_are_read_from_the_states_given():
    generator = torch.Generator().manual_seed(0)
    picture, text = torch.randn(7, 4, generator=generator), torch.randn(3, 4, generator=generator)
    rows = [softmax([float(i @ t) for t in text]) for i in picture]
    torch.testing.assert_close(pointing(picture, text), torch.tensor(sum(rows) / 7, dtype=torch.float32))


def test_tops_does_not_mind_how_little_attention_the_image_gets():
    generator = torch.Generator().manual_seed(1)
    relevance, similarity = torch.rand(30, generator=generator), cosine(torch.randn(30, 8, generator=generator))
    assert balanced(1e-7 * relevance, similarity, 20, 0.5).tolist() == balanced(relevance, similarity, 20, 0.5).tolist()


def test_tops_takes_copies_by_relevance_alone():
    relevance = torch.tensor([0.1, 0.3, 0.2, 0.3, 0.4])
    assert balanced(relevance, cosine(torch.ones(5, 4096) / 3), 5, 1.0).tolist() == [4, 1, 3, 2, 0]


# -- E2S-Pruner -------------------------------------------------------------------------------------------------------


def test_e2s_pruner_accumulates_evidence_from_cut_to_cut(kv_heads):
    method = E2SPruner()
    state, view = looked_at(method, kv_heads, views=((6, 6),))
    known, rest = None, list(range(36))
    for depth, count in ((2, 24), (3, 11), (4, 4)):
        view.depth, view.observed_layer = depth, method.observed_layer(depth)
        now = shorter(view, state)
        evidence = literal.e2s_evidence(now)
        if known is None:
            masses, conflicts = evidence, [0.0] * len(evidence)
        else:
            masses, conflicts = zip(*map(literal.dempster, known, evidence), strict=True)
        cells = [((2 * (i // 6) + 1) * 4 // 12, (2 * (i % 6) + 1) * 4 // 12) for i in rest]  # of the tokens' middles
        kept = literal.e2s(masses, conflicts, cells, count)
        state = method.reduce(state.with_features(now.hidden[now.visual]), now, count).state
        rest, known = [rest[i] for i in kept], [masses[i] for i in kept]
        assert state.indices.tolist() == rest
        expected = torch.tensor([[m[0], m[1], conflicts[i]] for m, i in zip(known, kept, strict=True)])
        torch.testing.assert_close(view.memory[state.indices], expected.float(), atol=1e-5, rtol=1e-4)


def test_e2s_evidence_is_undecided_where_heads_disagree_or_see_nothing_special():
    even = head_opinion(torch.zeros(4, 9))
    torch.testing.assert_close(even, torch.zeros(9, 3))
    disagreeing = torch.zeros(2, 9)
    disagreeing[0, 0] = disagreeing[1, 1] = 30.0  # each head is sure of another token
    assert head_opinion(disagreeing)[:2].max() < 0.02 and head_opinion(disagreeing[:1])[0, 0] > 0.7


def test_e2s_conflict_raises_the_score():
    trusted, doubted = torch.tensor([[0.9, 0.0, 0.0]]), torch.tensor([[0.0, 0.8, 0.0]])
    both = combined(trusted, doubted)
    torch.testing.assert_close(both, torch.tensor([[0.18 / 0.28, 0.08 / 0.28, 0.72]]))
    assert retained(doubted) == pytest.approx(0.2)
    assert retained(both) == pytest.approx(1 - (0.08 / 0.28) * (1 - 0.72))


def test_e2s_finds_undecided_tokens_more_plausible_than_those_with_some_support():
    undecided, supported = torch.zeros(1, 3), head_opinion(torch.tensor([[3.0, 1.0, 1.0, 1.0, 1.0, 1.0]]))[:1]
    assert supported[0, 0] > supported[0, 1] > 0 and retained(undecided) > retained(supported)


def test_e2s_opinions_stay_with_their_image():
    """Two images under one method, in turns, as each alone."""
    method, alone, states = E2SPruner(), [], []
    for state, view in (looked_at(method, seed=seed) for seed in (0, 1)):
        first = method.reduce(state, view, 20).state
        alone.append(indices(method.reduce(first, shorter(view, first), 6)))
    views = [looked_at(method, seed=seed) for seed in (0, 1)]
    for state, view in views:
        states.append(method.reduce(state, view, 20).state)
    assert [indices(method.reduce(s, shorter(v, s), 6)) for s, (_, v) in zip(states, views, strict=True)] == alone


def test_a_combination_keeps_the_opinions_of_its_method():
    opinions = []
    for method in (E2SPruner(), create_method("e2s-pruner+csc")):
        state, (_, view) = method.begin(image(), 35).state, looked_at(method)
        state = method.reduce(state, view, 20).state
        method.reduce(state, shorter(view, state), 6)
        opinions.append(view.memory)
    assert torch.equal(*opinions) and opinions[0].any()


# -- what all of them promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BEFORE_TOO)
@pytest.mark.parametrize("views", ODD_VIEWS, ids=str)
@pytest.mark.parametrize("copies", [1, 50], ids=["distinct", "all alike"])
def test_any_count_comes_out_before_the_decoder(name, views, copies):
    context = image(views, copies=copies)
    for count in (1, 2, 11, context.grid.size - 1):
        state = create_method(name).begin(context, count).state
        assert state.count == count == state.indices.unique().numel() and state.features.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("views", ODD_VIEWS, ids=str)
@pytest.mark.parametrize("copies", [1, 50], ids=["distinct", "all alike"])
def test_any_count_comes_out_inside_the_decoder(name, views, copies):
    method = create_method(name)
    state, view = looked_at(method, views=views, copies=copies)
    for count in (1, 2, 11, state.count - 1):
        reduced = method.reduce(state, view, count).state
        assert reduced.count == count == reduced.indices.unique().numel() and reduced.features.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_partly_masked_images_and_prompts_without_text(name):
    method, context = create_method(name), image(((3, 4), (2, 6)))
    visible = torch.ones(24, dtype=torch.bool).index_fill_(0, torch.tensor([0, 7, 13]), False)
    context.signals = context.signals.restricted(visible)
    context.positions = context.positions[visible]
    if name in BEFORE_TOO:
        assert method.begin(context, 10).state.count == 10
    state, view = inside(context, 2, method)
    view.text = view.text[:0]
    assert method.reduce(state, view, 6).state.count == 6


def test_windows_divide_every_view():
    grid = Grid(((4, 4), (8, 8)))
    assert windows(grid, 4)[:16].tolist() == list(range(16))
    assert windows(grid, 4)[16:].bincount().tolist() == [0] * 16 + [4] * 16
