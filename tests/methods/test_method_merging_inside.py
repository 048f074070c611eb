"""Rivals that merge tokens inside the decoder, against literal references."""

import numpy as np
import pytest
import torch
from reference.inside import layer_attention, rotated_keys
from reference.ops import ranking, unit
from reference.video_mergers import holitom_inside
from support.cases import first_of
from support.images import LAYERS, image, inside
from support.videos import ask_about, frame_tokens

import covist
from covist.errors import CovistError
from covist.grid import Grid, PartialGrid
from covist.methods.create import create_method
from covist.methods.published.framefusion import FrameFusion, fused
from covist.methods.published.holitom import HoliTom
from covist.methods.published.sttm import STTM, fitting, grouped, quadtrees
from covist.methods.published.visiondrop import VisionDrop
from covist.state import VisualState


@pytest.fixture(params=[4, 2], ids=["multi-head", "grouped-query"])
def kv_heads(request):
    return request.param


# -- HoliTom ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 17, 34])
def test_holitom_folds_what_the_last_token_ignores_into_what_it_resembles(kv_heads, count):
    method = HoliTom()
    state, view = inside(image(seed=3), 2, method, 1, kv_heads)
    reduced = method.reduce(state, view, count).state
    rows = view.visual.tolist()
    attention = np.mean([[head[-1, row] for row in rows] for head in layer_attention(view)], axis=0)
    expected, sizes = holitom_inside(view.hidden[view.visual].double().numpy(), attention, count)
    assert view.observed_layer == view.depth - 1 and reduced.indices.tolist() == sorted(expected)
    wanted = torch.from_numpy(np.stack([expected[i] for i in sorted(expected)])).float()
    torch.testing.assert_close(reduced.features, wanted, atol=1e-5, rtol=1e-5)
    assert reduced.weights.tolist() == [sizes[i] for i in sorted(expected)]


def test_holitom_halves_its_tokens_at_the_published_layer_unless_it_is_told_not_to():
    with_it = HoliTom().schedule(layers=28, budget=460, tokens=4000)
    first, second = with_it.tokens_per_layer[17:19]
    assert (len(with_it.stages), with_it.stages[1][0]) == (2, 18) and abs(first - 2 * second) <= 1
    assert abs(with_it.mean - 460) < 0.5
    assert HoliTom(inside=False).schedule(28, 460, 4000).tokens_per_layer == (460,) * 28
    with pytest.raises(CovistError, match="inside='deep': choose True or False"):
        HoliTom(inside="deep")


# -- VisionDrop -------------------------------------------------------------------------------------------------------


def literal_visiondrop(view, count, contextual):
    """{index: content} of the tokens that stay."""
    rows = view.visual.tolist()
    attention = layer_attention(view)
    score = [float(np.mean([[head[r, c] for r in rows] for head in attention])) for c in rows]
    keys = rotated_keys(view).reshape(len(view.hidden), -1, view.decoder.head_width)
    metric = [unit(keys[row].mean(0)) for row in rows]
    content = view.hidden[view.visual].double().numpy()
    stay = ranking(score)[: count - contextual]
    rest = [i for i in range(len(rows)) if i not in stay]
    targets = rest[:: max(1, len(rest) // max(1, contextual))][:contextual]
    members = {target: [] for target in targets}
    for i in rest:
        if i not in targets and targets:
            members[max(targets, key=lambda t: float(metric[i] @ metric[t]))].append(content[i])
    merged = {t: content[t] + (np.mean(own, axis=0) if own else 0) for t, own in members.items()}
    return {**{i: content[i] for i in stay}, **merged}, {t: 1 + len(own) for t, own in members.items()}


@pytest.mark.parametrize(("count", "contextual"), [(1, 0), (2, 1), (9, 2), (33, 5), (34, 5)])
def test_visiondrop_keeps_what_the_image_attends_to_and_merges_the_rest(kv_heads, count, contextual):
    method = VisionDrop()
    state, view = inside(image(seed=1), 2, method, 1, kv_heads)
    reduced = method.reduce(state, view, count).state
    expected, sizes = literal_visiondrop(view, count, contextual)
    assert view.observed_layer == view.depth and reduced.indices.tolist() == sorted(expected)
    wanted = torch.from_numpy(np.stack([expected[i] for i in sorted(expected)])).float()
    torch.testing.assert_close(reduced.features, wanted, atol=1e-5, rtol=1e-5)
    assert reduced.weights.tolist() == [sizes.get(i, 1) for i in sorted(expected)]


def test_visiondrop_passes_on_the_weights_of_what_it_merges():
    method = VisionDrop()
    state, view = inside(image(), 2, method)
    doubled = method.reduce(state.replace(weights=2 * state.weights), view, 9).state.weights
    assert doubled.tolist() == (2 * method.reduce(state, view, 9).state.weights).tolist()


# -- FrameFusion ------------------------------------------------------------------------------------------------------


def film(frames, tokens, seed, cut=None, width=8):
    """A state of a video whose places change slowly, some of them at a `cut` completely."""
    generator = torch.Generator().manual_seed(seed)
    still, steps = (torch.randn(size, tokens, width, generator=generator) for size in (2, frames))
    content = torch.stack([still[int(cut is not None and frame >= cut)] for frame in range(frames)]) + 0.4 * steps
    grid = Grid(((1, tokens),) * frames, "frames")
    return VisualState.initial(content.flatten(0, 1), torch.arange(frames * tokens), None, grid)


def literal_fusion(state, bound, removed=None):
    """{kept token: its members}: tokens of a place in order of time; those that resemble the one before them join it.

    removed: merge only so many, the most similar ones
    """
    columns = state.grid.views[0][1]
    rows = [unit(row) for row in state.features.double().numpy()]
    by_place = sorted(state.indices.tolist(), key=lambda index: (index % columns, index))
    at = {index: place for place, index in enumerate(state.indices.tolist())}
    similarity = {}
    for before, token in zip(by_place, by_place[1:], strict=False):
        same = before % columns == token % columns
        similarity[token] = float(rows[at[before]] @ rows[at[token]]) - (0 if same else 2)
    joining = [token for token in similarity if similarity[token] >= bound]
    if removed is not None:
        joining = sorted(similarity, key=lambda token: -similarity[token])[:removed]
    groups = {}
    for token in by_place:
        if token not in joining:
            groups[token] = []
            anchor = token
        groups[anchor].append(token)
    return groups


def assert_fused(outcome, state, groups):
    reduced = outcome.state
    assert reduced.indices.tolist() == sorted(groups)
    assert reduced.weights.tolist() == [len(groups[token]) for token in sorted(groups)]
    at = {index: place for place, index in enumerate(state.indices.tolist())}
    means = [state.features[[at[member] for member in groups[token]]].mean(0) for token in sorted(groups)]
    torch.testing.assert_close(reduced.features, torch.stack(means), atol=1e-5, rtol=1e-5)
    anchor_of = {member: token for token, members in groups.items() for member in members}
    assert reduced.indices[outcome.assignment].tolist() == [anchor_of[token] for token in state.indices.tolist()]


@pytest.mark.parametrize(("frames", "tokens", "cut"), [(5, 7, 3), (2, 9, None), (6, 1, 2)])
def test_framefusion_merges_runs_that_resemble_the_frame_before(frames, tokens, cut):
    state = film(frames, tokens, 1, cut)
    assert_fused(fused(state, 0.8, budget=1, share=frames * tokens, layers=28), state, literal_fusion(state, 0.8))


@pytest.mark.parametrize("left", [1, 5, 12, 30])  # of 7 places
def test_framefusion_merges_the_most_similar_tokens_where_the_bound_would_miss_the_budget(left):
    state = film(5, 7, 2, cut=2)
    groups = literal_fusion(state, 0.0, removed=35 - left)
    if left > 7:
        assert_fused(fused(state, -1.0, budget=left, share=left, layers=28), state, groups)  # all frames merge: too few
    assert_fused(fused(state, 1.0, budget=left, share=left, layers=1), state, groups)  # none does: too many


def test_framefusion_merges_survivors_of_a_place_even_if_frames_between_them_are_gone():
    state = film(5, 7, 3)
    some = state.restrict(torch.arange(35)[torch.arange(35) % 4 != 1])
    assert_fused(fused(some, 0.7, 1, 35, 28), some, literal_fusion(some, 0.7))


def test_framefusion_knows_the_places_of_a_partly_masked_video():
    state = film(4, 6, 4)
    cells = [cell for cell in range(24) if cell % 5]
    masked = VisualState.initial(
        state.features[cells], torch.arange(len(cells)), None, PartialGrid.of(state.grid, cells)
    )
    kept = fused(masked, 0.7, 1, 24, 28).state.indices
    assert [cells[index] for index in kept] == sorted(literal_fusion(state.restrict(torch.tensor(cells)), 0.7))


def test_framefusion_merges_the_first_of_equal_pairs_first():
    content = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(5)).expand(4, -1, -1)
    grid = Grid(((1, 6),) * 4, "frames")
    state = VisualState.initial(content.flatten(0, 1), torch.arange(24), None, grid)
    gone = sorted(set(range(24)) - set(fused(state, 0.6, 10, 10, 28).state.indices.tolist()))
    by_place = sorted((index for index in range(6, 24)), key=lambda index: (index % 6, index))
    assert gone == sorted(by_place[:14])


@pytest.mark.parametrize("family", ["llava-onevision", "qwen3-vl"])
@pytest.mark.parametrize("similarity", [0.6, 0.999, -1.0], ids=["published", "cuts", "merges"])
def test_framefusion_spends_its_budget_on_any_video(family, similarity):
    case = first_of(family)
    with torch.no_grad():
        for budget in (1, frame_tokens(case) // 3):
            method = FrameFusion(similarity)
            with covist.compress(case.model, case.processor(), method=method, budget=budget) as handle:
                case.model(**ask_about(case, "image", 4))
            for shown in handle.report.images:
                assert abs(shown.mean_tokens - shown.budget) <= 0.5, shown
                assert list(shown.tokens_per_layer) == sorted(shown.tokens_per_layer, reverse=True)


def test_framefusion_cuts_an_image_once_by_the_attention_of_its_first_layer():
    context, method = image(), FrameFusion()
    entered = method.begin(context, 9).state
    assert entered.count == 35  # no frame before it
    state, view = inside(context, 1, method)
    score = layer_attention(view)[:, -1].mean(0)[view.visual]
    count = round((9 * LAYERS - 35) / (LAYERS - 1))
    assert view.observed_layer == 0
    assert method.reduce(state, view, 9).state.indices.tolist() == sorted(ranking(score.tolist())[:count])


@pytest.mark.parametrize("similarity", ["high", 1.5, None])
def test_framefusion_refuses_a_similarity_that_is_no_cosine(similarity):
    with pytest.raises(CovistError, match="choose a cosine between -1 and 1"):
        create_method("framefusion", similarity=similarity)


# -- STTM -------------------------------------------------------------------------------------------------------------

GRIDS = {
    "video": Grid(((5, 6),) * 3, "frames"),
    "odd video": Grid(((3, 7),) * 2, "frames"),
    "image": Grid(((5, 7),)),
    "views": Grid(((3, 3), (5, 6))),
    "row": Grid(((1, 23),)),
    "token": Grid(((1, 1),) * 3, "frames"),
}
every_grid = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)


def smooth(grid, seed=0, width=16):
    """Features [N, d] of which some areas are alike."""
    generator = torch.Generator().manual_seed(seed)
    places = grid.coordinates()
    waves = torch.randn(places.shape[1], width, generator=generator)
    return torch.sin(2 * places @ waves) + 0.05 * torch.randn(grid.size, width, generator=generator)


def before_layer_two(grid, features):
    context = image(grid.views)
    context.signals.grid = grid
    state, view = inside(context, 2, STTM())
    state = state.replace(grid=grid, features=features, weights=1.0 + torch.arange(grid.size) % 3)
    view.observed[view.visual] = features
    return state, view


@every_grid
def test_sttm_reaches_any_count_and_loses_no_token(grid):
    features = smooth(grid)
    state, view = before_layer_two(grid, features)
    for count in sorted({1, 2, 7, grid.size // 2, grid.size - 1} & set(range(grid.size))):
        reduced = STTM().reduce(state, view, count).state.validate()
        assert reduced.count == count
        if grid is not GRIDS["views"] or count > 1:  # two views cannot become one token
            assert reduced.weights.sum() == state.weights.sum()


def partition(groups):
    return {tuple((groups.of_token == number).nonzero()[:, 0].tolist()) for number in range(len(groups.content))}


@pytest.mark.parametrize("bound", [0.7, 0.85, 0.95])
@pytest.mark.parametrize("grid", [GRIDS["image"], GRIDS["views"]], ids=["image", "views"])
def test_sttm_merges_as_published_if_its_bounds_lead_to_the_count(grid, bound):
    """Without time, where stricter bounds can lead to the same count by other merges."""
    trees, cells = quadtrees(grid, smooth(grid, 1)), torch.arange(grid.size)
    published = grouped(trees, cells, 0, bound)
    assert 1 < len(published.content) < grid.size
    assert partition(fitting(trees, cells, len(published.content))) == partition(published)


def test_sttm_fills_its_places_with_the_tokens_that_resemble_their_groups_least():
    """Two halves of an image become two tokens; of the third place, the token that fits worst is worthy."""
    grid, generator = Grid(((4, 4),)), torch.Generator().manual_seed(2)
    left, right, noise = (torch.randn(size, 16, generator=generator) for size in (1, 1, 16))
    features = torch.where((torch.arange(16) % 4 < 2)[:, None], left, right) + 0.01 * noise
    features[6] += 0.3 * noise[0]
    state, view = before_layer_two(grid, features)
    two, three = (STTM().reduce(state, view, count).state for count in (4, 5))
    assert two.indices.tolist() == [0, 2, 8, 10]
    torch.testing.assert_close(two.features[1], features[[2, 3, 6, 7]].mean(0))
    assert three.indices.tolist() == [0, 2, 6, 8, 10]
    assert torch.equal(three.features[2], features[6])
    torch.testing.assert_close(three.features[1], two.features[1])  # which stays as it was
    assert two.weights[1] - three.weights[1] == three.weights[2] == state.weights[6]


def test_sttm_merges_what_a_mask_leaves_of_a_video():
    whole = GRIDS["video"]
    cells = [cell for cell in range(whole.size) if cell % 7]
    grid = PartialGrid.of(whole, cells)
    features = smooth(whole)[cells]
    for count in (1, 10, 40):
        groups = fitting(quadtrees(grid, features), torch.tensor(cells), count)
        assert len(groups.of_token) == len(cells) and len(groups.content) <= count
        assert groups.of_token.unique().tolist() == list(range(len(groups.content)))
