"""EADP, TRIM, ZOO-Prune, SCoRe, Cen-Prune and FSR against literal references, and what of them is easily missed."""

from dataclasses import replace

import numpy as np
import pytest
import reference.relevance as literal
import torch
from reference.selectors import cdpruner as greedy_determinant
from reference.selectors import published_relevance
from support.images import FakeText, image
from support.rounding import OtherRounding
from support.ties import contents
from torch import nn

from covist.errors import CovistError
from covist.grid import Grid, PartialGrid
from covist.methods.create import create_method
from covist.methods.published.cdpruner import most_probable_subset
from covist.methods.published.cdpruner import question_relevance as cdpruner_relevance
from covist.methods.published.cen_prune import CenPruneCDPruner, CenPruneDivPrune, CenPruneZooPrune, centre
from covist.methods.published.eadp import EADP, gaussian, segment_relevance
from covist.methods.published.fsr import FSR, leading
from covist.methods.published.score import SCoRe
from covist.methods.published.trim import TRIM
from covist.methods.published.zoo_prune import ZooPrune, step_in
from covist.methods.shared import received_attention

COUNTS = [1, 2, 7, 18, 34]  # of 35 tokens
VIEWS = [((5, 7),), ((1, 9),), ((3, 3), (2, 6))]
QUESTION = "what color is the cat?"
METHODS = [EADP, TRIM, ZooPrune, SCoRe, CenPruneDivPrune, CenPruneZooPrune, CenPruneCDPruner, FSR]


def arrays(context):
    signals = context.signals
    parts = (received_attention(signals), signals.hidden, signals.embeddings)
    return tuple(part.double().numpy() for part in parts)


def kept(method, context, count):
    outcome = method.begin(context, count)
    assert outcome.state.count == count
    return outcome.state.indices.tolist()


def content(state, index):
    return state.features[state.indices.tolist().index(index)]


def weight(state, index):
    return float(state.weights[state.indices.tolist().index(index)])


def project_row(context):
    """The projector of one token in double precision."""
    exact = nn.Sequential(*(layer for layer in context.signals.project)).double()

    def project(features):
        return exact(torch.from_numpy(features)).numpy()

    return project


def bank(seed, directions=64, width=12):
    return torch.randn(directions, width, generator=torch.Generator().manual_seed(seed)).double().numpy()


@pytest.fixture(params=[1, 7], ids=["distinct", "duplicates"])
def copies(request):
    return request.param


@pytest.fixture
def context(copies):
    return image(seed=2, copies=copies)


def assert_same_choice(found, expected, copies):
    """Any copy is as good as another, and with one of each there is nothing left to gain."""
    if copies == 1:
        assert found == expected
    assert set(contents(found, copies)) == set(contents(expected, copies))


@pytest.mark.parametrize("alpha", [0.8, 0.0])
@pytest.mark.parametrize("count", COUNTS)
def test_score(context, copies, count, alpha):
    attention, hidden, _ = arrays(context)
    assert_same_choice(kept(SCoRe(alpha), context, count), literal.score(hidden, attention, count, alpha), copies)
    assert SCoRe().alpha == 0.8


@pytest.mark.parametrize("seed", [0, 3])
def test_zoo_prune(seed):
    context = image(seed=1)
    _, hidden, embeddings = arrays(context)
    found = ZooPrune(seed=seed).sensitivity(context.signals)
    project = project_row(image(seed=1))
    sensitive = literal.sensitivity(hidden, project, bank(seed))
    torch.testing.assert_close(found.double(), torch.tensor(sensitive).double(), atol=1e-3, rtol=1e-3)
    for count in COUNTS:
        assert kept(ZooPrune(seed=seed), context, count) == literal.zoo_prune(embeddings, found.tolist(), count)


def test_zoo_prune_moves_in_64_directions_by_a_step_that_its_precision_resolves():
    assert ZooPrune().directions == 64
    steps = [step_in(dtype) for dtype in (torch.float16, torch.float32, torch.bfloat16)]
    assert steps == pytest.approx([0.01, 0.01, 0.08])


def test_zoo_prunes_directions_are_those_of_its_seed_alone():
    context = image(seed=1)
    first = ZooPrune().sensitivity(context.signals)
    torch.manual_seed(123)
    torch.rand(7)
    assert torch.equal(ZooPrune().sensitivity(context.signals), first)
    assert not torch.equal(ZooPrune(seed=1).sensitivity(context.signals), first)


def test_after_a_linear_projector_all_tokens_are_equally_sensitive():
    context = image(seed=1)
    linear = nn.Linear(12, 16).requires_grad_(False)
    context.signals = replace(context.signals, project=linear, span=linear(context.signals.hidden))
    assert ZooPrune().sensitivity(context.signals).unique().tolist() == [1.0]
    expected = literal.zoo_prune(arrays(context)[2], [1.0] * 35, 9)
    assert kept(ZooPrune(), context, 9) == expected


@pytest.mark.parametrize("count", COUNTS)
def test_cen_prune_over_divprune(context, copies, count):
    features, rarity = literal.centred(arrays(context)[2])
    expected = literal.cen_prune_divprune(features, rarity, count)
    assert_same_choice(kept(CenPruneDivPrune(), context, count), expected, copies)


@pytest.mark.parametrize("count", COUNTS)
def test_cen_prune_over_zoo_prune(context, copies, count):
    features, rarity = literal.centred(arrays(context)[2])
    sensitive = ZooPrune(seed=3).sensitivity(context.signals).double().tolist()
    expected = literal.cen_prune_zoo_prune(features, rarity, sensitive, count)
    assert_same_choice(kept(CenPruneZooPrune(seed=3), context, count), expected, copies)


@pytest.mark.own_rounding
@pytest.mark.parametrize("rounding", range(4))
def test_rounding_does_not_tell_copies_of_the_least_rare_token_apart(rounding):
    with OtherRounding(rounding):
        rarity = centre(image(seed=2, copies=7).signals).rarity
    assert (rarity == 0).sum() == 7 and rarity.max() == 1


@pytest.mark.parametrize("count", [1, 5, 12])
def test_cen_prune_over_cdpruner(count):
    context = image(seed=4, clip=True)
    patches, text = (part.double().numpy() for part in (context.patch_text_features, pooled()))
    features, rarity = literal.centred(arrays(context)[2])
    weights = published_relevance(patches, text) * rarity
    assert kept(CenPruneCDPruner(), context, count) == greedy_determinant(features, weights, count)


def test_cen_prune_over_cdpruner_fills_the_budget_beyond_the_rank():
    context = image(seed=4)
    found = centre(context.signals)
    weights = found.rarity * cdpruner_relevance(context)
    unit = nn.functional.normalize(found.features)
    first = most_probable_subset(unit @ unit.T, weights, 33).tolist()
    assert len(first) < 33
    others = sorted(set(range(35)) - set(first), key=lambda i: -weights[i])
    assert kept(CenPruneCDPruner(), context, 33) == sorted(first + others[: 33 - len(first)])


@pytest.mark.parametrize("patches", [2, 4])
def test_cen_prune_of_tokens_that_merge_patches_looks_at_these(patches):
    context = image(seed=5, class_token=False)
    wide = torch.randn(35, patches * 12, generator=torch.Generator().manual_seed(1)) + 2
    context.signals = replace(context.signals, read_hidden=lambda: wide)
    features, rarity = literal.centred_patches(wide.double().numpy().reshape(35, patches, 12))
    torch.testing.assert_close(
        centre(context.signals).rarity.double(), torch.tensor(rarity).double(), atol=1e-4, rtol=0
    )
    for count in (1, 9, 34):
        assert kept(CenPruneDivPrune(), context, count) == literal.cen_prune_divprune(features, rarity, count)


@pytest.mark.parametrize("patches", [1, 4])
def test_cen_prune_does_not_choose_by_rounding_where_all_tokens_are_the_mean(patches):
    context = image(copies=35, class_token=False)
    alike = context.signals.hidden.repeat(1, patches)
    context.signals = replace(context.signals, read_hidden=lambda: alike)
    assert centre(context.signals).features.count_nonzero() == 0
    assert kept(CenPruneDivPrune(), context, 9) == list(range(9))


def test_cen_prune_takes_the_options_of_its_base():
    assert create_method("cen-prune-zoo-prune:seed=4,directions=2").directions == 2
    assert create_method("cen-prune-cdpruner:relevance=plain").relevance == "plain"


def pooled():
    return FakeText().encode_segments(QUESTION)


@pytest.mark.parametrize("sign", ["negated", "plain"])
@pytest.mark.parametrize("count", COUNTS)
def test_trim(count, sign):
    context = image(seed=3, clip=True)
    products = (context.patch_text_features.double() @ pooled().double().T).mean(-1).numpy()
    chosen, mean = literal.trim(products if sign == "negated" else -products, arrays(context)[1], count)
    assert_trim(TRIM(sign).begin(context, count), context, chosen, mean)


@pytest.mark.parametrize("count", COUNTS)
def test_trim_without_clip_takes_what_resembles_the_question(count):
    context = image(seed=3)
    words, tokens = context.instruction.embeddings.double(), context.signals.embeddings.double()
    cosines = torch.stack([torch.cosine_similarity(tokens, word[None]) for word in words]).mean(0)
    chosen, mean = literal.trim(-cosines.numpy(), arrays(context)[1], count)
    assert_trim(TRIM().begin(context, count), context, chosen, mean)


def assert_trim(outcome, context, chosen, mean):
    state, removed = outcome.state, sorted(set(range(35)) - set(chosen))
    assert state.indices.tolist() == sorted([*chosen, removed[-1]])
    for index in chosen:
        assert torch.equal(content(state, index), context.signals.embeddings[index])
    expected = context.signals.project(torch.from_numpy(mean).float())
    torch.testing.assert_close(content(state, removed[-1]), expected, atol=1e-5, rtol=1e-5)
    assert weight(state, removed[-1]) == len(removed) and state.weights.sum() == 35
    stands_for = state.indices[outcome.assignment].tolist()
    assert stands_for == [index if index in chosen else removed[-1] for index in range(35)]


def test_trim_without_a_question_keeps_evenly_spaced_tokens():
    context = image(((6, 6),), clip=True, text="")
    context.instruction = replace(context.instruction, read_embeddings=lambda: torch.empty(0, 16))
    assert set(kept(TRIM(), context, 10)) == {7, 9, 11, 19, 21, 23, 31, 33, 35} | {34}


@pytest.mark.parametrize("focus", [0.9, 0.3])
@pytest.mark.parametrize("clip", [True, False], ids=["clip", "no clip"])
@pytest.mark.parametrize("count", COUNTS)
def test_fsr(count, clip, focus):
    context = image(seed=6, clip=clip)
    attention, _, embeddings = arrays(context)
    relevance = np.ones(35)
    if clip:
        relevance = published_relevance(context.patch_text_features.double().numpy(), pooled().double().numpy())
    expected, merged = literal.fsr(relevance, attention, embeddings, count, focus)
    state = FSR(focus=focus).begin(context, count).state
    assert state.indices.tolist() == sorted([*expected, *merged])
    for index in expected:
        assert torch.equal(content(state, index), context.signals.embeddings[index]) and weight(state, index) == 1
    for index, (mean, members) in merged.items():
        torch.testing.assert_close(content(state, index).double(), torch.from_numpy(mean), atol=1e-5, rtol=1e-5)
        assert weight(state, index) == members


def test_fsr_focuses_on_nine_tenths_of_the_evidence_and_no_more_than_the_budget():
    assert FSR().focus == 0.9
    evidence = torch.tensor([0.05, 0.5, 0.05, 0.3, 0.1])
    assert leading(evidence, 0.9, 5).tolist() == [1, 3, 4]
    assert leading(evidence, 0.9, 2).tolist() == [1, 3]
    assert leading(torch.zeros(3), 0.9, 3).tolist() == [0]


def test_fsr_merges_as_many_tokens_as_it_scanned():
    state = FSR(focus=0.3).begin(image(seed=6), 12).state
    scanned = 12 - len(leading(received_attention(image(seed=6).signals), 0.3, 12))
    assert scanned > 0 and state.weights.sum() == 12 + scanned


def test_eadp_reads_a_fifth_of_the_text_that_points_somewhere():
    generator = torch.Generator().manual_seed(0)
    tokens, text, states = (torch.randn(*shape, generator=generator) for shape in ((35, 5), (5,), (77, 5)))
    negated = -torch.stack([torch.cosine_similarity(tokens, state[None]) for state in states], dim=1)
    chosen, _ = literal.telling(negated.double().numpy())
    assert len(chosen) == 15
    expected = literal.eadp_relevance(*(part.double().numpy() for part in (tokens, text[None], states[None])))
    found = segment_relevance(tokens, text, states, "negated")
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sign", ["negated", "plain"])
@pytest.mark.parametrize("views", VIEWS)
def test_eadp(views, sign):
    context = image(views, seed=7, clip=True)
    texts = (context.patch_text_features, pooled(), FakeText().encode_padded(QUESTION))
    relevance = literal.eadp_relevance(*(part.double().numpy() for part in texts), -1 if sign == "negated" else 1)
    assert_eadp(EADP(sign), context, literal.eadp_demand(relevance, views, beta=1.0))


@pytest.mark.parametrize("views", VIEWS)
def test_eadp_without_clip_reads_the_instructions_embeddings_still_negated(views):
    context = image(views, seed=7)
    words = context.instruction.embeddings.double().numpy()
    relevance = literal.eadp_relevance(arrays(context)[2], words.mean(0)[None], words[None])
    assert_eadp(EADP(), context, literal.eadp_demand(relevance, views, beta=2.0))
    assert_eadp(EADP(beta=0.5), context, literal.eadp_demand(relevance, views, beta=0.5))


def assert_eadp(method, context, demand):
    found = method.demand(context)
    torch.testing.assert_close(found.double(), torch.tensor(demand).double(), atol=1e-4, rtol=1e-3)
    for count in (1, 2, 7, context.grid.size - 1):
        assert kept(method, context, count) == literal.eadp(arrays(context)[2], found.tolist(), count)


def test_eadp_counts_opposite_tokens_as_uncovered():
    context = image(seed=7)
    opposite = torch.randn(35, 16, generator=torch.Generator().manual_seed(8))  # cosines of both signs
    context.signals = replace(context.signals, span=opposite)
    for count in (1, 7, 18):
        demand = EADP().demand(context).tolist()
        assert kept(EADP(), context, count) == literal.eadp(arrays(context)[2], demand, count)


def test_eadp_sharpens_the_demand_of_a_video():
    context = image(((3, 4), (3, 4)), seed=7, clip=True)
    once = EADP(beta=1).demand(context)
    assert torch.equal(EADP().demand(context), once)
    context.signals.grid = Grid(context.grid.views, "frames")
    torch.testing.assert_close(EADP().demand(context), once**2)


def test_eadp_smooths_over_the_cells_that_are_left():
    cells = [0, 1, 2, 5, 7, 8]
    left = PartialGrid.of(Grid(((3, 3),)), cells)
    values = torch.arange(1.0, 7)
    whole, present = torch.zeros(9), torch.zeros(9)
    whole[cells], present[cells] = values, 1.0
    sums, shares = (literal.blurred(part.view(3, 3).double().numpy()).flatten()[cells] for part in (whole, present))
    torch.testing.assert_close(left.smooth(values, gaussian).double(), torch.from_numpy(sums / shares))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("clip", [True, False], ids=["clip", "no clip"])
def test_duplicates_never_cost_a_place(method, count, clip):
    state = method().begin(image(copies=7, clip=clip), count).state
    assert state.count == count == state.indices.unique().numel()
    assert state.features.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_identical_tokens_and_no_question(method):
    context = image(copies=35, class_token=False, text="")
    context.instruction = replace(context.instruction, read_embeddings=lambda: torch.empty(0, 16))
    for count in (1, 6, 34):
        assert len(kept(method(), context, count)) == count


@pytest.mark.parametrize("method", METHODS)
def test_a_masked_image(method):
    context = image(clip=True)
    visible = torch.arange(35) % 3 > 0
    context.signals = context.signals.restricted(visible)
    context.positions = context.positions[visible]
    assert max(kept(method(), context, 11)) < 23


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16(method):
    context = image(seed=1, clip=True)
    low = nn.Sequential(*context.signals.project).bfloat16()
    hidden = context.signals.hidden.bfloat16()
    context.signals = replace(context.signals, project=low, read_hidden=lambda: hidden, span=low(hidden))
    state = method().begin(context, 9).state
    assert state.count == 9 and state.features.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("score:alpha=-1", "alpha=-1: choose a number of at least 0"),
        ("zoo-prune:seed=some", "seed='some': choose an integer"),
        ("zoo-prune:directions=0", "directions=0: choose an integer of at least 1"),
        ("fsr:focus=0", "focus=0: choose a share above 0 and at most 1"),
        ("eadp:beta=much", "beta='much': choose a number of at least 0, or none"),
        ("trim:relevance=high", "relevance='high': choose negated, plain or none"),
    ],
)
def test_bad_options_say_what_is_wrong(name, message):
    with pytest.raises(CovistError, match=message):
        create_method(name)
