"""Rows and their side columns: what is packed comes back in every dtype, in slices too, and markers keep places."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.contract.signals import ImageSignals
from covist.grid import Grid
from covist.methods.create import create_method
from covist.state import VisualState
from covist.vllm.rows import LARGEST_OFFSET, Side, image_rows, occupied_positions, side_columns, whole_rows

ERRORS = {torch.float32: (0.0, 0.0), torch.bfloat16: (2**-17, 0.0), torch.float16: (2**-17, 2**-24)}
"""How far log m may be off: relatively, and absolutely where a dtype runs out of exponents."""


@st.composite
def sides(draw):
    axes, count = draw(st.sampled_from([1, 3])), draw(st.integers(1, 6))
    weights = draw(st.lists(st.floats(1, 4096, width=32), min_size=count, max_size=count))
    offsets = draw(st.lists(st.integers(0, LARGEST_OFFSET - 1), min_size=count * axes, max_size=count * axes))
    visual = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    log_weight = torch.tensor(weights).log() * torch.tensor(visual)
    return Side(torch.tensor(visual), log_weight, torch.tensor(offsets).view(count, axes))


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@given(side=sides())
def test_packed_rows_unpack_to_the_same_values(dtype, side):
    packed = side.pack(torch.empty(0, dtype=dtype))
    assert packed.dtype == dtype and packed.shape == (len(side.visual), side_columns(side.offsets.shape[1]))
    found = Side.unpack(packed)
    assert torch.equal(found.visual, side.visual) and torch.equal(found.offsets, side.offsets)
    relative, absolute = ERRORS[dtype]
    assert bool(((found.log_weight - side.log_weight).abs() <= relative * side.log_weight + absolute).all())


@given(side=sides(), cut=st.integers(0, 6))
def test_slices_of_rows_unpack_as_the_whole_does(side, cut):
    packed = side.pack(torch.empty(0, dtype=torch.bfloat16))
    whole, parts = Side.unpack(packed), [Side.unpack(part) for part in (packed[:cut], packed[cut:])]
    for field in ("visual", "log_weight", "offsets"):
        assert torch.equal(getattr(whole, field), torch.cat([getattr(part, field) for part in parts]))


def test_rows_of_zeros_are_text():
    found = Side.unpack(torch.zeros(3, side_columns(1)))
    assert not found.visual.any() and not found.log_weight.any() and not found.offsets.any()


# -- an image of 2 x 3 tokens with a newline after each row of them ----------------------------------------------------

NEWLINES = [3, 7]
SPAN = torch.arange(8.0)[:, None].expand(8, 2).contiguous()


def newline_signals() -> ImageSignals:
    content = torch.ones(8, dtype=torch.bool)
    content[NEWLINES] = False
    nothing = SimpleNamespace()
    return ImageSignals(
        Grid(((2, 3),)), SPAN, content, *[lambda: nothing] * 3, pack=torch.arange(6), project=lambda x: x
    )


def kept_state(kept: list[int], weights: list[float]) -> VisualState:
    signals = newline_signals()
    whole = VisualState.initial(signals.embeddings, signals.content_rows, None, signals.grid)
    return whole.restrict(torch.tensor(kept)).replace(weights=torch.tensor(weights))


def unpacked(rows: torch.Tensor) -> tuple[torch.Tensor, Side]:
    return rows[:, :2], Side.unpack(rows[:, 2:])


def test_markers_stay_between_the_tokens_that_remain_and_are_not_biased():
    rows = image_rows(newline_signals(), kept_state([1, 3, 5], [2.0, 1.0, 3.0]), create_method("covist-fixed"), 3)
    embeddings, side = unpacked(rows)
    assert embeddings[:, 0].tolist() == [1, 3, 4, 6, 7]  # token 3 of the grid is row 4 of the span, after a newline
    assert side.visual.tolist() == [True, False, True, True, False]
    expected = torch.tensor([math.log(2), 0, 0, math.log(3), 0])
    torch.testing.assert_close(side.log_weight, expected)
    assert side.offsets[:, 0].tolist() == [1, 3, 4, 6, 7]


def test_an_image_that_was_not_reduced_is_not_biased():
    _, side = unpacked(
        image_rows(newline_signals(), kept_state([*range(6)], [1.0] * 6), create_method("covist-fixed"), 6)
    )
    assert not side.visual.any() and side.offsets[:, 0].tolist() == [*range(8)]


@pytest.mark.parametrize(
    ("method", "offsets", "occupied"),
    [
        ("covist-fixed", [1, 3, 4, 6, 7], 8),
        ("covist-fixed:position_span=4", [0, 1, 2, 3, 3], 4),
        ("divprune:positions=reindex", [0, 1, 2, 3, 4], 5),
    ],
)
def test_offsets_follow_the_position_rule_of_the_method(method, offsets, occupied):
    method = create_method(method)
    _, side = unpacked(image_rows(newline_signals(), kept_state([1, 3, 5], [1.0] * 3), method, 3))
    assert side.offsets[:, 0].tolist() == offsets
    assert occupied_positions(method, length=8, rows=5, budget=3) == occupied


def test_an_image_that_keeps_all_tokens_occupies_as_many_positions():
    assert occupied_positions(create_method("covist-fixed:position_span=4"), length=8, rows=8, budget=6) == 8


def test_positions_on_several_axes_stay_on_the_grid_whatever_the_rule_is():
    signals = newline_signals()
    signals.span, signals.content = SPAN[:6], torch.ones(6, dtype=torch.bool)
    grid = torch.tensor([[0, row, column] for row in range(2) for column in range(3)])
    whole = VisualState.initial(signals.embeddings, grid, None, signals.grid)
    for name in ("covist-fixed", "divprune:positions=reindex"):
        rows = image_rows(signals, whole.restrict(torch.tensor([2, 4])), create_method(name), 2, grid=grid)
        assert Side.unpack(rows[:, 2:]).offsets.tolist() == [[0, 0, 2], [0, 1, 1]]


def test_markers_stand_on_the_grid_too():
    signals, grid = newline_signals(), torch.arange(24).view(8, 3)
    whole = VisualState.initial(signals.embeddings, grid[signals.content_rows], None, signals.grid)
    rows = image_rows(signals, whole.restrict(torch.tensor([1])), create_method("covist-max"), 1, grid=grid)
    assert Side.unpack(rows[:, 2:]).offsets.tolist() == grid[[1, *NEWLINES]].tolist()


def test_later_frames_stand_after_the_earlier_ones():
    state, method = kept_state([1, 3, 5], [1.0] * 3), create_method("covist-fixed")
    _, side = unpacked(image_rows(newline_signals(), state, method, 3, before=100))
    assert side.offsets[:, 0].tolist() == [101, 103, 104, 106, 107]


def test_an_uncompressed_image_keeps_its_rows():
    embeddings, side = unpacked(whole_rows(SPAN, torch.arange(8)[:, None]))
    assert torch.equal(embeddings, SPAN) and not side.visual.any() and side.offsets[:, 0].tolist() == [*range(8)]
