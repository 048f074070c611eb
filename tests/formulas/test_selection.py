import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import coverage as reference
from reference import evidence as reference_evidence
from reference.ops import departure
from state_building import peak_bytes

from covist.checks import MOST_TOKENS
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.formulas import greedy
from covist.formulas.selection import InstructionEvidence, grown_with_frames, initial_selection
from covist.grid import Grid
from formulas.inputs import STRUCTURED, array, close, generator, image

CONFIG = CovistConfig()


def literal(made, count, pi=None, anchors_allowed=False, max_weight=0.3, reference_concentration=None):
    """The whole initial stage by the reference functions: (sorted set, anchors, evidence)."""
    keys, embeddings, views = array(made.keys), array(made.embeddings), made.grid.views
    smoothed = reference_evidence.smooth_attention(array(made.attention), keys, views)
    base = reference_evidence.base_evidence(smoothed, reference_evidence.distinctiveness(embeddings, views))
    e = base if pi is None else reference_evidence.mix_evidence(base, pi, max_weight)
    kept, anchors = reference.select(
        smoothed,
        departure(smoothed),
        e,
        reference.affinity(keys, embeddings),
        reference.descriptors(keys, embeddings, views),
        count,
        pi,
        anchors_allowed,
        reference_concentration,
    )
    return kept, anchors, e


@pytest.mark.parametrize("views", [((5, 7),), ((1, 12),), ((3, 4), (4, 5))])
@pytest.mark.parametrize("count", [1, 2, 9, 12])
@pytest.mark.parametrize("running", [None, 0.1])
def test_selection_without_instruction_matches_the_reference(views, count, running):
    made = image(views, seed=count)
    selection, s = initial_selection(
        made.attention, made.keys, made.embeddings, made.grid, count, CONFIG, reference=running
    )
    kept, _, e = literal(made, count, reference_concentration=running)
    assert selection.kept.tolist() == kept
    close(selection.evidence, e)
    close(s, reference.affinity(array(made.keys), array(made.embeddings)))
    assert not selection.anchors.any()


@pytest.mark.parametrize("count", [8, 16, 30])
@pytest.mark.parametrize("anchors_allowed", [True, False])
def test_selection_with_instruction_matches_the_reference(count, anchors_allowed):
    made = image(((6, 7),), seed=count)
    pi = (3 * torch.rand(made.size, generator=generator(9))).softmax(0)
    selection, _ = initial_selection(
        made.attention,
        made.keys,
        made.embeddings,
        made.grid,
        count,
        CONFIG,
        InstructionEvidence(pi, anchors_allowed, 0.3),
    )
    kept, anchors, e = literal(made, count, array(pi), anchors_allowed)
    assert selection.kept.tolist() == kept
    assert selection.anchors.nonzero()[:, 0].tolist() == sorted(anchors)
    close(selection.evidence, e)
    assert set(selection.maps) == {"attention", "distinctiveness", "instruction", "combined"}


@pytest.mark.parametrize("name", STRUCTURED)
def test_every_structured_image_gives_exactly_count_sorted_tokens(name):
    made = STRUCTURED[name]()
    pi = torch.rand(made.size, generator=generator()).pow(4)
    for count in {1, (made.size + 1) // 2, made.size}:
        selection, _ = initial_selection(
            made.attention,
            made.keys,
            made.embeddings,
            made.grid,
            count,
            CONFIG,
            InstructionEvidence(pi / pi.sum(), True, 0.3),
        )
        assert selection.kept.shape == (count,)
        assert (selection.kept.diff() > 0).all()


def test_constant_images_are_selected_by_attention_alone():
    made = STRUCTURED["constant features"]()
    selection, s = initial_selection(made.attention, made.keys, made.embeddings, made.grid, 8, CONFIG)
    close(s, torch.ones_like(s), 1e-6)
    assert not selection.maps["distinctiveness"].any()


@given(st.integers(0, 1000), st.data())
def test_evidence_is_a_distribution_and_concentration_a_fraction(seed, data):
    made = image(((4, 5),), seed=seed)
    count = data.draw(st.integers(1, made.size))
    selection, _ = initial_selection(made.attention, made.keys, made.embeddings, made.grid, count, CONFIG)
    assert float(selection.evidence.sum()) == pytest.approx(1, abs=1e-5)
    assert (selection.evidence >= 0).all()
    assert 0 <= selection.concentration <= 1


def test_a_flat_instruction_sets_no_anchors():
    made = image()
    flat = torch.full((made.size,), 1 / made.size)
    selection, _ = initial_selection(
        made.attention, made.keys, made.embeddings, made.grid, 16, CONFIG, InstructionEvidence(flat, True, 0.3)
    )
    assert not selection.anchors.any()


def test_no_reserve_means_coverage_fills_everything():
    made = image(((8, 8),))
    with_reserve, _ = initial_selection(made.attention, made.keys, made.embeddings, made.grid, 30, CONFIG)
    without, _ = initial_selection(
        made.attention, made.keys, made.embeddings, made.grid, 30, CONFIG.replace(reserve=0.0)
    )
    assert len(without.kept) == 30
    assert without.kept.tolist() != with_reserve.kept.tolist()


@pytest.mark.parametrize("field", ["attention", "keys", "embeddings"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_signals_are_refused_by_name(field, bad):
    made = image()
    getattr(made, field).view(-1)[3] = bad
    with pytest.raises(ValueError, match=f"initial_selection: {field} contains NaN or infinite"):
        initial_selection(made.attention, made.keys, made.embeddings, made.grid, 5, CONFIG)


def test_impossible_requests_are_refused():
    made = image()
    arguments = (made.attention, made.keys, made.embeddings, made.grid)
    for count in (0, -3, made.size + 1):
        with pytest.raises(ValueError, match=f"count must be between 1 and 35 .*got {count}"):
            initial_selection(*arguments, count, CONFIG)
    with pytest.raises(ValueError, match="attention must not be negative"):
        initial_selection(-made.attention, *arguments[1:], 5, CONFIG)
    with pytest.raises(ValueError, match=r"keys must have shape \[35, any\]"):
        initial_selection(made.attention, made.keys[1:], *arguments[2:], 5, CONFIG)
    with pytest.raises(ValueError, match="instruction must have shape"):
        initial_selection(*arguments, 5, CONFIG, InstructionEvidence(torch.rand(3), True, 0.3))


def test_inputs_are_left_as_they_were():
    made = image()
    before = [t.clone() for t in (made.attention, made.keys, made.embeddings)]
    initial_selection(made.attention, made.keys, made.embeddings, made.grid, 9, CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(before, (made.attention, made.keys, made.embeddings), strict=True))


@pytest.mark.parametrize("name", STRUCTURED)
def test_the_accelerator_path_selects_the_same_tokens(name, monkeypatch):
    made = STRUCTURED[name]()
    pi = torch.rand(made.size, generator=generator()).pow(4)
    for count in {1, (made.size + 1) // 2, made.size}:
        found = []
        for dense in (False, True):
            monkeypatch.setattr(greedy, "DENSE", dense)
            signals = (made.attention, made.keys, made.embeddings, made.grid, count, CONFIG)
            kept = initial_selection(*signals, InstructionEvidence(pi / pi.sum(), True, 0.3))[0].kept
            found.append(sorted((kept % (made.size // 2)).tolist()) if name == "duplicates" else kept.tolist())
        assert found[0] == found[1]


def test_an_image_too_large_for_pairwise_affinities_is_refused_before_they_are_computed():
    size = MOST_TOKENS + 1
    with pytest.raises(
        CovistError, match=r"initial_selection: 16385 tokens are too many .* lower the image's resolution"
    ):
        initial_selection(torch.ones(size), torch.ones(size, 1), torch.ones(size, 1), Grid(((1, size),)), 4, CONFIG)


@pytest.mark.own_rounding
@pytest.mark.parametrize("dense, matrices", [(False, 3.2), (True, 4.5)])
def test_the_initial_stage_holds_a_few_pairwise_matrices_at_most(dense, matrices, monkeypatch):
    monkeypatch.setattr(greedy, "DENSE", dense)
    made = image(((24, 24),))
    signals = (made.attention, made.keys, made.embeddings, made.grid, 64, CONFIG)
    assert peak_bytes(lambda: initial_selection(*signals)) <= matrices * 4 * made.size**2


@pytest.mark.parametrize(
    "frames, regions, anchors", [(1, 16, 24), (4, 32, 48), (9, 48, 72), (16, 64, 96), (100, 64, 96)]
)
def test_regions_and_anchors_grow_with_the_root_of_the_frames(frames, regions, anchors):
    grown = grown_with_frames(CONFIG, frames)
    assert (grown.regions, grown.anchor_limit) == (regions, anchors)


def test_a_video_is_selected_with_the_regions_of_its_frames():
    made = image(((4, 4),) * 4)
    video = Grid(made.grid.views, "frames")
    selection, _ = initial_selection(made.attention, made.keys, made.embeddings, video, 12, CONFIG)
    same, _ = initial_selection(
        made.attention, made.keys, made.embeddings, video, 12, CONFIG.replace(regions=8, anchor_limit=12)
    )
    keys, embeddings, views = array(made.keys), array(made.embeddings), made.grid.views
    smoothed = reference_evidence.smooth_attention(array(made.attention), keys, views)
    e = reference_evidence.base_evidence(smoothed, reference_evidence.distinctiveness(embeddings, views))
    s = reference.affinity(keys, embeddings)
    points = reference.descriptors(keys, embeddings, views, in_time=True)
    kept, _ = reference.select(smoothed, departure(smoothed), e, s, points, 12, regions_count=32)
    assert selection.kept.tolist() == kept
    fewer, _ = reference.select(smoothed, departure(smoothed), e, s, points, 12, regions_count=16)
    assert same.kept.tolist() == fewer
