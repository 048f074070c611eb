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
