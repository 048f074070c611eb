"""Methods against the authors' code, on golden inputs whose cases have names (tests/golden/README.md)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support import golden
from support.images import image

from covist.contract.views import DecoderView
from covist.grid import Grid
from covist.methods.inside import attention_within_image
from covist.methods.published._quadtree import ROOT_LEVEL, Quadtree, representatives
from covist.methods.published.framefusion import FrameFusion, Spent, fused
from covist.methods.published.globalcom2 import GlobalCom2, Tiles, tile_rates
from covist.methods.published.otprune import OTPrune
from covist.methods.published.visiondrop import VisionDrop
from covist.state import VisualState


def of(file):
    return pytest.mark.parametrize("case", golden.named_cases(file), ids=str)


def shown(embeddings, **known):
    """An image of one row with these embeddings [N, d], and with other signals given."""
    context = image(((1, len(embeddings)),))
    context.signals = replace(context.signals, span=embeddings, **known)
    return context


@of("otprune")
def test_otprune(case):
    order = case["out_order"]
    context = shown(case["x"][0])
    assert torch.equal(OTPrune().select(context, len(order)), order)
    assert torch.equal(OTPrune().begin(context, len(order)).state.indices, case["out_kept"])


# -- GlobalCom2 -------------------------------------------------------------------------------------------------------

LAYOUTS = {"two_by_two": (2, 2, 0), "padded": (2, 2, 4), "three_by_one": (1, 3, 0), "one_by_four": (4, 1, 0)}
"""Rows and columns of crops, and the padded rows above and below them."""


def tiled(case):
    """An overview and crops of side x side patches, without the padding, and which crop and patch each token is."""
    rows, columns, padded = LAYOUTS[case.name]
    side = round(len(case["thumbnail"]) ** 0.5)
    numbers = torch.arange(rows * columns * side**2).view(rows, columns, side, side).transpose(1, 2)
    sharp = numbers.reshape(rows * side, columns * side)[padded : rows * side - padded]
    views = ((side, side), tuple(sharp.shape))
    tiles = torch.cat([case["thumbnail"][None], case["crops"]])[:, None]  # [tiles, one head, patches]
    context = image(views)
    context.signals = replace(
        context.signals,
        pack=torch.cat([torch.arange(side**2), side**2 + sharp.flatten()]),
        layers={23: SimpleNamespace(logits=lambda: tiles)},
    )
    return context, views, sharp.flatten()


@of("globalcom2")
def test_globalcom2(case):
    context, views, numbers = tiled(case)
    tiles, side = Tiles(views), views[0][0]
    overview = case["thumbnail"].view(side, side)
    ratio = {"three_by_one": 0.1, "one_by_four": 0.5}.get(case.name, 0.25)
    rates = torch.tensor(tile_rates(overview, tiles.rows, tiles.columns))
    torch.testing.assert_close(ratio * rates, case["out_scales"])
    resized = tiles.spread(overview)[side**2 :][numbers.argsort()]
    torch.testing.assert_close(resized, case["out_global_scores"], atol=1e-5, rtol=1e-5)
    kept_of_overview, kept_of_crops = case["out_thumbnail_kept"].sort().values, case["out_crop_kept"]
    chosen = GlobalCom2().begin(context, len(kept_of_overview) + len(kept_of_crops)).state.indices
    assert torch.equal(chosen[chosen < side**2], kept_of_overview)
    crops = numbers[chosen[chosen >= side**2] - side**2].sort().values
    assert torch.equal((crops // side**2).bincount(), case["out_counts"])
    assert torch.equal(crops % side**2, kept_of_crops)


# -- VisionDrop -------------------------------------------------------------------------------------------------------

FIRST = 5  # row of the image's first token


class Projected(DecoderView):
    """A view of an image whose queries, and the keys of all tokens, were recorded."""

    def __init__(self, queries, keys, hidden):
        self._queries, self._keys = queries, keys
        self.visual = torch.arange(FIRST, FIRST + queries.shape[1])
        self.hidden = self.observed = hidden
        self.observed_layer, self.decoder = 0, SimpleNamespace(scale=lambda layer: queries.shape[-1] ** -0.5)

    def queries(self, rows, rotate=True):
        return self._queries[:, rows - FIRST]

    def keys(self, rows=None, rotate=True):
        return self._keys if rows is None else self._keys[:, rows]


@of("visiondrop")
def test_visiondrop_inside_the_decoder(case):
    view = Projected(case["queries"], case["keys"], case["hidden"])
    torch.testing.assert_close(attention_within_image(view), case["out_score"])
    content, dominant = case["hidden"][view.visual], case["out_dominant"]
    state = VisualState.initial(content, view.visual, None, Grid(((1, len(content)),)))
    contextual = len(case["out_tokens"]) - len(dominant)
    method = VisionDrop()
    if contextual != method.contextual_places(len(case["out_tokens"])):
        method.contextual_places = lambda count: contextual  # another split than any published one
    reduced = method.reduce(state, view, len(case["out_tokens"])).state
    is_dominant = torch.isin(reduced.indices, dominant)
    assert torch.equal(reduced.indices[is_dominant], dominant)
    tokens = torch.cat([reduced.features[is_dominant], reduced.features[~is_dominant]])
    torch.testing.assert_close(tokens, case["out_tokens"], atol=1e-5, rtol=1e-5)


def test_visiondrop_has_the_published_counts():
    stages = VisionDrop().schedule(32, 32, 576).stages
    assert stages == ((0, 48), (8, 35), (16, 26), (24, 19))
    assert [count - VisionDrop().contextual_places(count) for _, count in stages] == [42, 30, 22, 16]


# -- FrameFusion ------------------------------------------------------------------------------------------------------

COST, DEPTH = 0.3, 28
BOUNDS = {"merge_then_cut": 0.9, "merge_enough": 0.3, "two_merges": 0.8}
BEFORE_IMAGE, BEHIND_IMAGE = 3, 4  # text rows


class AfterMerging(DecoderView):
    """A view of the last prompt token's attention to the tokens that are left; layers change nothing."""

    def __init__(self, depth, attention, state, memory):
        length = attention.shape[-1]
        left = torch.cat(
            [torch.arange(BEFORE_IMAGE), BEFORE_IMAGE + state.indices, torch.arange(length)[-BEHIND_IMAGE:]]
        )
        self.depth, self.decoder, self.memory = depth, SimpleNamespace(layers=DEPTH), memory
        self.visual = torch.arange(BEFORE_IMAGE, BEFORE_IMAGE + state.count)
        self.hidden, self._attention = torch.zeros(len(left), 1), attention[:, None, left]

    def attention(self, rows):
        return self._attention


def video_state(x):
    frames, tokens, _ = x.shape
    grid = Grid(((1, tokens),) * frames, "frames")
    return VisualState.initial(x.flatten(0, 1), torch.arange(frames * tokens), None, grid)


@of("framefusion")
def test_framefusion(case):
    method, state = FrameFusion(BOUNDS.get(case.name, 0.6)), video_state(case["x"])
    tokens = state.count
    budget = COST * tokens  # not a whole number of tokens, as it is in an image's budget
    memory, counts, depth = Spent(tokens), [], 0
    state = fused(state, method.similarity, budget, budget, DEPTH).state
    counts.append(state.count)
    while state.count > budget + 0.5:
        depth += 1
        state = method.reduce(state, AfterMerging(depth, case["attention"], state, memory), budget).state
        counts.append(state.count)
    if case.name == "same_frames":  # ties; the original keeps one more, because it truncates
        assert counts == [round(budget)] == [int(case["out_visual_after"][0]) - 1]
        return
    assert counts == case["out_visual_after"].tolist()
    left = case[f"out_positions{depth}"]
    is_image = (left >= BEFORE_IMAGE) & (left < BEFORE_IMAGE + tokens)
    assert torch.equal(state.indices, left[is_image] - BEFORE_IMAGE)
    torch.testing.assert_close(state.features, case["out_tokens"][is_image], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("percent", [15, 30, 50])
def test_framefusion_spends_what_earlier_layers_have_left(number, percent):
    arrays, spent = golden.stored("framefusion"), Spent(1.0)
    for depth, share in enumerate((1 - arrays[f"ratio_list_{number}"].double()).cumprod(0).tolist(), start=1):
        spent.note(share, depth)
    merging = max(0.0, 1 - spent.share(percent / 100, DEPTH) / spent.tokens)
    assert merging == pytest.approx(float(arrays[f"ratio_out_{number}_{percent}"]), abs=1e-6)


# -- STTM -------------------------------------------------------------------------------------------------------------

QUADTREES = {
    "even": (8, 0.85, 0.7, 1),
    "spatial_only": (8, 0.85, None, 1),
    "odd7": (7, 0.8, 0.65, 1),
    "odd13_root0": (13, 0.8, 0.6, 0),
    "rect": (5, 0.8, 0.6, 0),
    "one_frame": (6, 0.85, 0.6, 0),
    "same_frames": (4, 0.85, 0.6, 0),
}
"""Rows of tokens, bound within a frame and between frames, and root level."""


@of("sttm")
def test_sttm(case):
    rows, spatial, temporal, level = QUADTREES[case.name]
    frames = case["x"].unflatten(1, (rows, -1))
    tree, (_, height, width, _) = Quadtree(frames), frames.shape
    root = tree.root - ROOT_LEVEL + level
    group, content = tree.merged(root, spatial, temporal)
    assert torch.equal(group.bincount(), case["out_patches"])
    torch.testing.assert_close(content, case["out_features"], atol=1e-5, rtol=1e-5)
    first, _ = tree.areas(root, spatial)
    boxes = []
    for number in range(len(content)):
        area = (first == (group == number).nonzero()[0, 0]).nonzero()[:, 0]  # of the group's first token
        frame, y, x = area // (height * width), area // width % height, area % width
        boxes.append([int(frame[0]), int(y.min()), int(x.min()), int(y.max()) + 1, int(x.max()) + 1])
    assert boxes == case["out_box"].tolist()


@pytest.mark.parametrize("name", ["pairs", "pairs_short"])
def test_sttm_joins_areas_over_time_as_far_as_published(name):
    arrays = golden.stored("sttm")
    earlier, later = arrays[name].T
    assert torch.equal(representatives(earlier, later, len(arrays[f"{name}_out"])), arrays[f"{name}_out"])
