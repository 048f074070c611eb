"""Methods made for videos: what each guarantees on any video, and what is ours against literal references."""

import numpy as np
import pytest
import reference.video_mergers as merging
import reference.videos as literal
import torch
from support.images import film, image, inside

from covist.errors import CovistError
from covist.methods.create import create_method
from covist.methods.frames import by_frame, fit_counts, fit_tokens, similar_segments
from covist.methods.published.dycoke import DyCoke
from covist.methods.published.evs import EVS
from covist.methods.published.prunevid import PruneVid, similar_windows
from covist.methods.published.scissor import Scissor
from covist.methods.registry import available_methods

INSIDE = {"framefusion", "sttm"}
"""They merge inside the decoder: test_method_merging_inside.py."""
VIDEO = sorted({name for name, method in available_methods().items() if method.info.made_for == "video"} - INSIDE)
SHAPES = [(1, 3, 5), (2, 1, 4), (9, 2, 3)]


def moving(frames, rows, columns, width=16, seed=0):
    """Tokens [F, n, d] of which half move slowly and half change at random, with attention [F, n]."""
    generator = torch.Generator().manual_seed(seed)
    still = torch.randn(1, rows * columns, width, generator=generator)
    change = torch.randn(frames, rows * columns, width, generator=generator)
    amount = 0.1 + 0.9 * (torch.rand(frames, rows * columns, 1, generator=generator) > 0.5)
    attention = torch.rand(frames, rows * columns, generator=generator).softmax(-1)
    return still + amount * change, attention


def film_of(shape, seed=0):
    return film(*moving(*shape, seed=seed), shape=shape[1:])


def assert_state(state, count):
    assert state.count == count
    assert state.features.isfinite().all()
    state.validate()


@pytest.mark.parametrize("name", VIDEO)
def test_every_budget_of_any_video_is_met(name):
    for shape in SHAPES:
        context = film_of(shape)
        tokens = context.grid.size
        for count in {1, shape[0] - 1, tokens // 4, tokens // 2, tokens - 1} - {0}:
            assert_state(create_method(name).begin(context, count).state, count)


@pytest.mark.parametrize("name", VIDEO)
@pytest.mark.parametrize("kind", ["static", "uniform", "zero"])
def test_what_does_not_move_is_compressed_as_well(name, kind):
    tokens, attention = moving(5, 3, 3)
    tokens = {"static": tokens[:1].expand_as(tokens), "uniform": torch.ones_like(tokens), "zero": 0 * tokens}[kind]
    for count in (1, 11, 44):
        assert_state(create_method(name).begin(film(tokens, attention, (3, 3)), count).state, count)


@pytest.mark.parametrize("name", VIDEO)
def test_masked_videos_and_tiled_images_are_compressed_as_well(name):
    visible = torch.ones(45, dtype=torch.bool)
    for masked in ([0, 44], [0, 9, 18, 27, 36], list(range(18))):
        context = film_of((5, 3, 3))
        context.signals = context.signals.restricted(visible.index_fill(0, torch.tensor(masked), False))
        context.positions = context.positions[: 45 - len(masked)]
        assert_state(create_method(name).begin(context, 12).state, 12)
    assert_state(create_method(name).begin(image(((3, 3), (2, 6))), 7).state, 7)


@pytest.mark.parametrize("name", VIDEO)
def test_half_precision_gives_finite_tokens_of_its_own_type(name):
    tokens, attention = moving(5, 3, 3)
    state = create_method(name).begin(film(tokens.half(), attention, (3, 3)), 12).state
    assert state.features.dtype == torch.float16
    assert_state(state, 12)


def test_frames_are_aligned_unless_masks_differ():
    context = film_of((3, 2, 2))
    assert by_frame(torch.arange(12), context.grid).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    same, fewer, other = (torch.ones(12, dtype=torch.bool) for _ in range(3))
    same[[1, 5, 9]], fewer[:4], other[[1, 6, 9]] = False, False, False
    shapes = [
        by_frame(torch.arange(int(visible.sum())), context.signals.restricted(visible).grid).shape
        for visible in (same, fewer, other)
    ]
    assert shapes == [(3, 3), (2, 4), (1, 9)]
    assert by_frame(torch.arange(21), image(((3, 3), (2, 6))).grid).shape == (1, 21)


def test_segments_end_at_the_lowest_cosines():
    angles = torch.tensor([0.0, 0.1, 0.9, 1.2, 1.25])
    means = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert similar_segments(means, 0.9, least=1) == [range(2), range(2, 5)]
    assert similar_segments(means, 0.9, least=3) == [range(2), range(2, 3), range(3, 5)]
    assert len(similar_segments(means, 0.9, least=8)) == 5
    assert similar_segments(torch.ones(4, 2), 0.9, least=3) == [range(1), range(1, 2), range(2, 4)]
    assert similar_segments(means[:1], 0.9, least=8) == [range(1)]


def test_tokens_that_stand_for_others_leave_last_and_the_most_salient_fill_up():
    saliency = torch.tensor([5.0, 1.0, 4.0, 3.0, 3.0, 2.0])
    kept, merged = torch.tensor([1, 3, 5]), torch.tensor([1])
    assert fit_tokens(kept, 3, saliency).tolist() == [1, 3, 5]
    assert fit_tokens(kept, 2, saliency, merged).tolist() == [1, 3]
    assert fit_tokens(kept, 2, saliency).tolist() == [3, 5]
    assert fit_tokens(kept, 5, saliency, merged).tolist() == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("total", [1, 3, 5, 9, 14, 19, 20])
def test_counts_are_fitted_where_they_differ_most(total):
    wanted = [0.4, 3.6, 4.0, 1.5, 0.6]
    counts = [max(1, round(own)) for own in wanted]
    assert fit_counts(counts, wanted, total, most=4) == literal.fitted(counts, wanted, total, most=4)


@pytest.mark.parametrize("count", [1, 8, 9, 10, 30, 44])
def test_evs_by_embeddings(count):
    tokens, _ = moving(5, 3, 3, seed=1)
    expected = literal.evs(literal.changed_embeddings(tokens.double().numpy()), 9, count)
    for chosen in (EVS("embeddings"), EVS()):  # without pixels
        assert chosen.select(film(tokens, shape=(3, 3)), count).sort().values.tolist() == expected


@pytest.mark.parametrize("count", [1, 5, 6, 7, 14])
def test_evs_by_pixels(count):
    frames = torch.rand(3, 3, 8, 9, generator=torch.Generator().manual_seed(2))
    context = film(moving(3, 2, 3)[0], shape=(2, 3), pixels=list(frames))
    expected = literal.evs(literal.changed_pixels(frames.double().numpy(), 2, 3), 6, count)
    assert EVS().select(context, count).sort().values.tolist() == expected
    assert set(EVS("embeddings").select(context, 9).tolist()) != set(EVS().select(context, 9).tolist())


def test_evs_keeps_the_first_frame_of_a_still_video_and_fills_up_in_order():
    context = film(torch.ones(3, 6, 4), shape=(2, 3), pixels=[torch.ones(3, 4, 6)] * 3)
    for space in ("pixels", "embeddings"):
        assert EVS(space).select(context, 8).sort().values.tolist() == list(range(8))
    with pytest.raises(CovistError, match="pixels or embeddings"):
        EVS("colours")


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 6, 7, 9])
def test_dycoke(frames):
    tokens, _ = moving(frames, 3, 3, seed=frames)
    for count in (1, 5, 9, 10, 4 * frames, 9 * frames - 3):
        chosen = DyCoke().select(film(tokens, shape=(3, 3)), min(count, 9 * frames - 1))
        assert chosen.tolist() == literal.dycoke(tokens.double().numpy(), len(chosen))
    assert len(np.unique(chosen)) == len(chosen)


def assert_merged(state, expected):
    assert state.indices.tolist() == sorted(expected)
    wanted = torch.from_numpy(np.stack([expected[index] for index in sorted(expected)])).float()
    torch.testing.assert_close(state.features, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["fastvid", "flashvid", "flashvid:mean=on", "holitom", "tango"])
@pytest.mark.parametrize("shape", [(1, 3, 5), (2, 3, 4), (9, 2, 3)], ids=str)
def test_what_stays_and_what_it_contains(name, shape):
    """Counts between the published ones, few frames, and large shares, for which there are no golden vectors."""
    tokens, attention = moving(*shape, seed=4)
    reference = getattr(merging, name.partition(":")[0])
    options = {"mean": True} if "mean" in name else {"columns": shape[2]} if name == "tango" else {}
    method = create_method(name)
    total = shape[0] * shape[1] * shape[2]
    for count in {1, shape[0] + 1, total // 3, 4 * total // 5}:
        state = method.begin(film(tokens, attention, shape[1:]), count).state
        assert_merged(state, reference(tokens.double().numpy(), attention.double().numpy(), count, **options))


@pytest.mark.parametrize("name", ["fastvid", "holitom", "tango"])
@pytest.mark.parametrize("similarity", [1.5, "high", True])
def test_a_threshold_is_a_cosine(name, similarity):
    with pytest.raises(CovistError, match="similarity=.*choose a cosine from -1 to 1"):
        create_method(name, similarity=similarity)


@pytest.mark.parametrize("shape", [(1, 3, 5), (3, 4, 5), (9, 2, 3), (8, 4, 4)], ids=str)
def test_prunevid(shape):
    tokens, attention = moving(*shape, seed=5)
    total = shape[0] * shape[1] * shape[2]
    windows = [list(window) for window in similar_windows(tokens.mean(1))]
    for count in (1, total // 3, total // 2, total - 1):
        state = PruneVid().begin(film(tokens, attention, shape[1:]), count).state
        assert_merged(state, merging.prunevid(tokens.double().numpy(), windows, count))


def test_prunevid_cuts_every_set_by_the_largest_attention_of_any_head_and_word():
    method, context = PruneVid(), image(((5, 7),))
    state, view = inside(context, 3, method)
    view.memory = torch.tensor([0, 1, 1, 3, 3] * 7)
    attention = view.attention(view.text).amax((0, 1))[view.visual]
    kept = method.reduce(state, view, 14).state.indices
    assert view.memory[kept].bincount().tolist() == [
        3,
        6,
        0,
        5,
    ]  # of 7, 14 and 14: two fifths, the remainder to the first
    for group, count in ((0, 3), (1, 6), (3, 5)):
        members = (view.memory == group).nonzero()[:, 0]
        assert kept[view.memory[kept] == group].tolist() == sorted(
            members[attention[members].topk(count).indices].tolist()
        )
    assert method.memory(context).tolist() == [0] * 35


@pytest.mark.parametrize("shape", [(1, 3, 4), (4, 2, 2)], ids=str)
def test_scissor(shape):
    tokens, attention = moving(*shape, seed=6)
    total = shape[0] * shape[1] * shape[2]
    for count in (1, total // 3, total - 1):
        outcome = Scissor().begin(film(tokens, attention, shape[1:]), count)
        assert_merged(outcome.state, merging.scissor(tokens.double().numpy(), count))
        members = outcome.assignment.bincount(minlength=count)
        assert outcome.state.weights.tolist() == members.clamp(min=1).tolist()
