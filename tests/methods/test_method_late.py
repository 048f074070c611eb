"""Rivals that reduce only inside the decoder, against literal references."""

import numpy as np
import pytest
import reference.late as literal
import torch
from reference.ops import ranking
from support.cases import FAMILIES
from support.images import image, inside
from support.llava import IMAGE, TOKEN_ID, ask, build_llava, processor
from support.requests import assert_same, greedy

import covist
from covist.errors import CovistError
from covist.grid import Grid, PartialGrid
from covist.methods.create import create_method
from covist.methods.published import transprune
from covist.methods.published._fitting import Attended
from covist.methods.published.clse import CLSE, fine_structure
from covist.methods.published.fitprune import AttentionProbe, FitPrune
from covist.methods.published.priortr import PriorTR
from covist.methods.published.transprune import TransPrune
from covist.methods.published.v2drop import V2Drop
from covist.schedule import Calibration

VIEWS = [((5, 7),), ((1, 6),), ((4, 4), (2, 9))]
PROMPT = "USER: <image> what color is this ? ASSISTANT:"


@pytest.fixture(params=[4, 2], ids=["multi-head", "grouped-query"])
def kv_heads(request):
    return request.param


def looked_at(method, kv_heads=4, seed=0, depth=2, views=((5, 7),), copies=1):
    return inside(image(views, seed), depth, method, seed, kv_heads, copies)


def kept(method, state, view, count):
    outcome = method.reduce(state, view, count)
    assert outcome.state.count == count
    return outcome.state.indices.tolist()


@pytest.mark.parametrize("count", [1, 8, 34])
@pytest.mark.parametrize("rows", ["all", "last"])
def test_priortr_keeps_what_the_prior_does_not_explain(kv_heads, count, rows):
    method = PriorTR(rows=rows)
    state, view = looked_at(method, kv_heads)
    assert view.observed_layer == 1
    score = literal.priortr_score(view, rows)
    torch.testing.assert_close(method.score(view), torch.tensor(score, dtype=torch.float32), atol=1e-6, rtol=1e-4)
    assert kept(method, state, view, count) == sorted(ranking(score)[:count])


def test_priortr_keeps_the_first_tokens_where_no_text_follows():
    method = PriorTR()
    state, view = looked_at(method)
    view.text = view.text[:0]
    assert kept(method, state, view, 5) == [0, 1, 2, 3, 4]


def test_priortr_refuses_other_rows():
    with pytest.raises(CovistError, match="rows='first': choose 'all' or 'last'"):
        create_method("priortr:rows=first")


# -- V2Drop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8, 34])
@pytest.mark.parametrize("seed", [0, 1])
def test_v2drop_keeps_what_the_layer_before_has_moved(seed, count):
    method = V2Drop()
    state, view = looked_at(method, seed=seed)
    assert view.observed_layer == view.depth - 1
    assert kept(method, state, view, count) == sorted(ranking(literal.v2drop_score(view))[:count])


def test_v2drop_reproduces_its_shipped_setting():
    schedule = V2Drop().schedule(32, 203, 576)
    assert schedule.stages == ((0, 576), (3, 288), (17, 144), (22, 1))
    assert schedule.mean == pytest.approx(203, abs=0.5)


@pytest.mark.parametrize(("budget", "counts"), [(192, (267, 134)), (128, (143, 71)), (64, (19, 9))])
def test_v2drop_halves_and_then_keeps_one_token(budget, counts):
    assert V2Drop().schedule(32, budget, 576).stages == ((0, 576), (3, counts[0]), (17, counts[1]), (22, 1))


# -- CLSE -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7), (4, 4), (1, 6), (6, 1), (1, 1), (3, 8)])
def test_fine_structure_is_the_centred_high_pass(shape):
    states = torch.randn(*shape, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.from_numpy(literal.fine_structure(states.double().numpy())).float()
    torch.testing.assert_close(fine_structure(states), expected, atol=1e-5, rtol=1e-5)


def test_a_flat_view_has_no_fine_structure():
    assert fine_structure(torch.full((6, 5, 4), 3.0)).abs().max() < 1e-5


@pytest.mark.parametrize("count", [1, 8, 21])
@pytest.mark.parametrize("views", VIEWS)
def test_clse_first_multiplies_attention_with_the_change_of_structure(kv_heads, views, count):
    method = CLSE()
    state, view = looked_at(method, kv_heads, depth=1, views=views)
    score = literal.clse_score(view, views)
    torch.testing.assert_close(method.score(view), torch.tensor(score, dtype=torch.float32), atol=1e-6, rtol=1e-3)
    count = min(count, state.count - 1)
    assert kept(method, state, view, count) == sorted(ranking(score)[:count])


def test_clse_later_criterion_attention_alone(kv_heads):
    method = CLSE()
    state, view = looked_at(method, kv_heads, depth=2)
    score = literal.layer_attention(view).mean(0)[len(view.hidden) - 1][view.visual]
    assert kept(method, state, view, 9) == sorted(ranking(score)[:9])


def test_masked_tokens_stand_at_the_mean_of_the_others():
    whole, cells = Grid(((3, 4), (2, 2))), [0, 2, 5, 6, 11, 13, 15]
    values = torch.randn(len(cells), 3)
    filled = values.mean(0).repeat(whole.size, 1)
    filled[cells] = values
    expected = whole.per_view(fine_structure, filled)[cells]
    assert torch.equal(PartialGrid.of(whole, cells).per_view(fine_structure, values), expected)


@pytest.mark.parametrize(
    ("budget", "counts"), [(192, (330, 210, 62)), (128, (220, 140, 41)), (64, (110, 70, 20)), (100, (172, 109, 32))]
)
def test_clse_published_counts_leave_the_last_ones_in_every_cache(budget, counts):
    schedule = create_method("clse:counts=nominal").schedule(32, budget, 576)
    assert schedule.stages == ((0, 576), *zip((1, 11, 21), counts, strict=True))
    assert schedule.cached_tokens_per_layer == (counts[-1],) * 32


def test_clse_budgets_what_prefill_runs_over():
    schedule = CLSE().schedule(32, 192, 576)
    assert [depth for depth, _ in schedule.stages] == [0, 1, 11, 21]
    assert schedule.mean == pytest.approx(192, abs=0.5) and schedule.cached_mean == schedule.stages[-1][1] < 62
    assert CLSE().schedule(32, 600, 576).cache_cut_from is None


# -- TransPrune -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_transprune_counts_growth_and_turning_of_a_block(seed):
    given, made = torch.randn(2, 11, 6, generator=torch.Generator().manual_seed(seed))
    expected = torch.from_numpy(literal.transprune_change(given.double().numpy(), made.double().numpy())).float()
    torch.testing.assert_close(transprune.change(given, made), expected)


@pytest.mark.parametrize("count", [1, 8, 34])
def test_transprune_adds_the_texts_attention_in_the_next_layer(kv_heads, count):
    method = TransPrune()
    state, view = looked_at(method, kv_heads)
    assert view.observed_layer == view.depth
    score, scored = literal.transprune_score(view), transprune.score(view, view.memory)
    torch.testing.assert_close(scored, torch.tensor(score, dtype=torch.float32), atol=1e-6, rtol=1e-4)
    assert kept(method, state, view, count) == sorted(ranking(score)[:count])


def test_transprune_reproduces_its_published_setting():
    depths, counts = zip(*TransPrune().schedule(32, 236, 576).stages, strict=True)
    assert depths == (0, 7, 9, 12)
    assert counts == pytest.approx((576, 0.875 * 576, 0.625 * 576, 0.125 * 576), abs=2)
    assert sum(7 * [576] + 2 * [504] + 3 * [360] + 20 * [72]) / 32 == 236.25


def test_transprune_ends_in_its_last_proportion_where_two_cuts_fall_on_one_layer():
    depths, counts = zip(*TransPrune().schedule(8, 192, 576).stages, strict=True)
    assert depths == (0, 1, 2)
    assert counts[2] / counts[1] == pytest.approx(0.125 / 0.875, rel=0.02)
    assert (576 + counts[1] + 6 * counts[2]) / 8 == pytest.approx(192, abs=0.5)


class Notes(TransPrune):
    """Remembers the change that it was shown at each depth."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = {}

    def choose(self, state, view, count):
        self.seen[view.depth] = view.memory[state.indices].tolist()
        return super().choose(state, view, count)


def test_the_blocks_are_followed_through_every_reduction():
    """Against the plain decoder's own layers, run by hand on what is left."""
    model, inputs, method = build_llava(layers=12), ask(PROMPT), Notes(positions="keep")
    ids = inputs["input_ids"]
    with torch.no_grad():
        with covist.compress(model, processor(), method=method, budget=50) as handle:
            greedy(model, inputs, 1)
        stages = handle.report.images[0].stages[1:]
        embeddings = model(**inputs, output_hidden_states=True).hidden_states[0][0]
        visual = (ids[0] == TOKEN_ID[IMAGE]).nonzero()[:, 0].tolist()
        depths = [stage.depth for stage in stages]
        assert len(depths) == 3
        left = {stage.depth: stage.indices.tolist() for stage in stages}
        expected = literal.followed_decoder(
            model.model.language_model, embeddings, visual, left, first=depths[0] - 1, last=depths[-1]
        )
    for depth in depths:
        np.testing.assert_allclose(method.seen[depth], expected[depth], rtol=1e-4)


def hooks_inside(model):
    layers = model.model.language_model.layers
    return sum(len(block._forward_hooks) for layer in layers for block in (layer.self_attn, layer.mlp))


def test_blocks_are_followed_only_for_methods_that_ask_and_let_go_exactly():
    model = build_llava()
    with covist.compress(model, processor(), method="fastv", budget=40) as handle:
        assert hooks_inside(model) == 0
        for _ in range(2):
            with handle.using(method="transprune", budget=40) as run:
                greedy(model, ask(PROMPT), 1)
            assert run.report.images[0].tokens_per_layer[-1] < 40
            assert hooks_inside(model) == 2 * len(model.model.language_model.layers)
    assert hooks_inside(model) == 0


# -- FitPrune -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 8, 34])
def test_fitprune_keeps_what_text_and_image_look_at(kv_heads, count, monkeypatch):
    monkeypatch.setattr("covist.methods.published.fitprune.ROWS_AT_ONCE", 8)  # several parts, the last one shorter
    method = FitPrune()
    state, view = looked_at(method, kv_heads)
    assert view.observed_layer == view.depth - 1
    score = [a * b for a, b in zip(*literal.fitprune_received(view), strict=True)]
    torch.testing.assert_close(method.score(view), torch.tensor(score, dtype=torch.float32), atol=1e-6, rtol=1e-4)
    assert kept(method, state, view, count) == sorted(ranking(score)[:count])


def maps(tokens, seed, layers=5):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(layers - 1, tokens, generator=generator) ** 4 for _ in range(2))


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.3, 0.8, 0.999])
def test_layers_give_up_what_both_sides_can_spare(alpha):
    """Images of several sizes, and one whose tokens are all the same."""
    images = [maps(7, 1), maps(12, 2), maps(1, 3), tuple(torch.ones(4, 6) for _ in range(2))]
    counts = [literal.fitprune_left(*(part.double().tolist() for part in image), alpha) for image in images]
    expected = np.mean([np.array(own) / own[0] for own in counts], axis=0)
    np.testing.assert_allclose(Attended.of(images).kept_shares(alpha).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("share", [0.9003, 0.5003, 0.3103])  # 6 images of 40 tokens in 5 layers never have these means
def test_the_search_finds_the_smallest_change_that_reaches_the_budget(share):
    attended = Attended.of([maps(40, seed) for seed in range(6)])
    alpha, kept_by_layer = attended.fit(share)
    assert kept_by_layer[0] == 1 and kept_by_layer == sorted(kept_by_layer, reverse=True)
    assert share - 0.02 < np.mean(kept_by_layer) <= share
    assert attended.kept_shares(alpha - 1e-6).mean() > share


def test_a_calibration_says_how_many_tokens_each_layer_sees():
    fitted = FitPrune(Calibration(((1.0, 0.5, 0.25, 0.25), (1.0, 0.9, 0.8, 0.1))))
    assert fitted.schedule(4, 50, 100).stages == ((0, 100), (1, 50), (2, 25))
    assert fitted.schedule(4, 70, 100).stages == ((0, 100), (1, 90), (2, 80), (3, 10))
    between = fitted.schedule(4, 60, 100)
    assert between.mean == 60 and between.tokens_per_layer == pytest.approx((100, 70, 52.5, 17.5), abs=0.5)


def test_a_calibration_is_stretched_over_another_depth():
    shares = Calibration(((1.0, 0.6, 0.2),)).shares(layers=5, level=0.5)
    assert shares == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert Calibration(((1.0, 0.6, 0.2),)).shares(layers=1, level=0.0) == [1.0]


@pytest.mark.parametrize(
    "kept_shares", [[], [[]], [[1.0], [1.0, 0.5]], [[0.9, 0.5]], [[1, 0.2, 0.3]], [[1, -1]], 3, ["ab"]]
)
def test_an_invalid_calibration_is_refused(kept_shares):
    with pytest.raises(CovistError, match="^calibration"):
        Calibration(kept_shares)


def test_fitprune_names_the_command_that_calibrates():
    with pytest.raises(CovistError, match="covist calibrate --method fitprune"):
        create_method("fitprune:calibration=mine")


def test_the_probe_sees_the_attention_of_the_plain_model():
    model, inputs, probe = build_llava(), ask(PROMPT, "USER: is this <image> left ? ASSISTANT:"), AttentionProbe()
    model.set_attn_implementation({"text_config": "eager"})
    with torch.no_grad():
        with covist.compress(model, processor(), method=probe) as handle:
            compressed = greedy(model, inputs, 1)
        assert handle.report.mean_tokens == handle.report.tokens
        plain = model(**inputs, output_attentions=True)
    torch.testing.assert_close(compressed.logits[0], plain.logits[:, -1], atol=1e-4, rtol=1e-4)
    is_image = inputs["input_ids"] == TOKEN_ID[IMAGE]
    for row, (cross, own) in enumerate(probe.images):
        visual = is_image[row].nonzero()[:, 0]
        assert probe.sizes[row] == (len(visual), 1)
        for layer in range(len(plain.attentions) - 1):
            strongest = plain.attentions[layer][row].amax(0)
            torch.testing.assert_close(cross[layer], strongest[visual[-1] + 1 :, visual].sum(0), atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(own[layer], strongest[visual][:, visual].mean(0), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_the_probe_leaves_every_family_as_it_is(case):
    inputs, probe = case.ask("{image} what is this ?", images=(2,)), AttentionProbe()
    with torch.no_grad():
        plain = greedy(case.model, inputs, 2)
        with covist.compress(case.model, case.processor(), method=probe):
            assert_same(greedy(case.model, inputs, 2), plain)
    ((cross, own),) = probe.images
    layers = case.model.config.get_text_config().num_hidden_layers
    assert cross.shape == own.shape == (layers - 1, probe.sizes[0][0])
    _, shares = probe.attended.fit(0.6)
    assert shares == sorted(shares, reverse=True)
