import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import evidence as reference
from support.ties import nearest_tie

from covist.config import CovistConfig
from covist.formulas import evidence
from covist.formulas.ops import unit_rows
from covist.grid import Grid
from formulas.inputs import STRUCTURED, array, close, generator

CONFIG = CovistConfig()


@pytest.mark.parametrize("heads, tokens", [(1, 1), (4, 9), (16, 30)])
def test_heads_are_mixed_by_departure_from_uniform(heads, tokens):
    attention = torch.rand(heads, tokens, generator=generator()) ** 3
    close(evidence.mix_heads(attention), reference.mix_heads(array(attention)))


def test_a_broken_head_is_not_taken_for_a_uniform_one():
    assert evidence.mix_heads(torch.tensor([[torch.nan, 1.0], [0.5, 0.5]])).isnan().all()


def test_uniform_heads_are_ignored_beside_a_peaked_one():
    attention = torch.stack([torch.full((5,), 0.2), torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])])
    close(evidence.mix_heads(attention), [0, 0, 1, 0, 0], 1e-6)


def test_batched_heads_are_mixed_one_by_one():
    attention = torch.rand(3, 4, 6, generator=generator())
    together = evidence.mix_heads(attention)
    for one, row in zip(attention, together, strict=True):
        close(row, evidence.mix_heads(one), 1e-6)


@pytest.mark.parametrize("name", STRUCTURED)
def test_visual_evidence_matches_the_reference(name):
    made = STRUCTURED[name]()
    found = evidence.visual_evidence(made.attention, made.keys, made.embeddings, made.grid, CONFIG)
    linked, unit_keys = None, unit_rows(made.keys)
    similarity = unit_keys @ unit_keys.T
    if name in ("constant features", "duplicates"):  # equal similarities: which tokens are linked is free
        linked = evidence.nearest_neighbours(similarity).indices.tolist()
    elif made.size > 9:
        assert nearest_tie(similarity.fill_diagonal_(-1), 8) > 1e-5
    smoothed = reference.smooth_attention(array(made.attention), array(made.keys), made.grid.views, linked)
    distinct = reference.distinctiveness(array(made.embeddings), made.grid.views)
    close(found.attention, smoothed)
    close(found.distinctiveness, distinct, 2e-4)
    close(found.base, reference.base_evidence(smoothed, distinct), 2e-4)
    assert found.concentration == pytest.approx(reference.departure(smoothed), abs=1e-5)


def test_neighbours_exclude_the_token_itself_and_restore_the_matrix():
    similarity = torch.rand(12, 12, generator=generator())
    before = similarity.clone()
    found = evidence.nearest_neighbours(similarity)
    assert torch.equal(similarity, before)
    assert found.indices.shape == (12, 8)
    assert not (found.indices == torch.arange(12)[:, None]).any()


@pytest.mark.parametrize("tokens", [1, 2, 7, 20])
@pytest.mark.parametrize("sign", [-1, 1])
def test_instruction_distribution_matches_the_reference(tokens, sign):
    g = generator(tokens)
    text, patches = torch.randn(tokens, 10, generator=g), torch.randn(15, 10, generator=g)
    found = evidence.instruction_distribution(text, patches, CONFIG.replace(instruction_sign=sign))
    close(found, reference.instruction_distribution(array(text), array(patches), sign), 2e-4)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_first_layer_distribution_matches_the_reference(kv_heads):
    g = generator()
    queries, keys = torch.randn(4, 3, 6, generator=g), torch.randn(kv_heads, 11, 6, generator=g)
    close(
        evidence.first_layer_distribution(queries, keys),
        reference.first_layer_distribution(array(queries), array(keys)),
    )


@given(st.integers(1, 20), st.floats(0, 1), st.integers(0, 100))
def test_mixed_evidence_matches_the_reference_and_has_mass_one(tokens, max_weight, seed):
    g = generator(seed)
    base = torch.rand(tokens, generator=g).softmax(0)
    pi = (4 * torch.rand(tokens, generator=g)).softmax(0)
    mixed = evidence.mix_evidence(base, pi, max_weight, CONFIG)
    close(mixed, reference.mix_evidence(array(base), array(pi), max_weight))
    assert float(mixed.sum()) == pytest.approx(1, abs=1e-5)


def test_an_instruction_that_adds_nothing_leaves_the_base_evidence():
    base = torch.rand(9, generator=generator()).softmax(0)
    close(evidence.mix_evidence(base, base, 0.3, CONFIG), base, 1e-6)


def test_selectivity_runs_from_uniform_to_a_single_token():
    assert float(evidence.selectivity(torch.full((4,), 0.25))) == 0
    assert float(evidence.selectivity(torch.tensor([1.0, 0.0, 0.0, 0.0]))) == pytest.approx(0.75)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_text_is_refused(bad):
    text = torch.randn(3, 4)
    text[1, 2] = bad
    with pytest.raises(ValueError, match="instruction_distribution: text contains NaN or infinite"):
        evidence.instruction_distribution(text, torch.randn(5, 4), CONFIG)


@pytest.mark.parametrize("value, message", [(float("nan"), "contains NaN or infinite"), (-1.0, "must not be negative")])
def test_invalid_attention_is_refused(value, message):
    attention = torch.rand(6)
    attention[3] = value
    with pytest.raises(ValueError, match=f"visual_evidence: attention {message}"):
        evidence.visual_evidence(attention, torch.rand(6, 3), torch.rand(6, 3), Grid(((2, 3),)), CONFIG)


def test_mismatched_shapes_are_refused():
    with pytest.raises(ValueError, match="visual_evidence: keys must have shape"):
        evidence.visual_evidence(torch.rand(6), torch.rand(5, 3), torch.rand(6, 3), Grid(((2, 3),)), CONFIG)
    with pytest.raises(ValueError, match="text must have shape"):
        evidence.instruction_distribution(torch.rand(2, 3), torch.rand(5, 4), CONFIG)
    with pytest.raises(ValueError, match="end-of-sequence"):
        evidence.instruction_distribution(torch.rand(0, 4), torch.rand(5, 4), CONFIG)
    with pytest.raises(ValueError, match="first_layer_distribution: queries need at least one"):
        evidence.first_layer_distribution(torch.rand(2, 0, 4), torch.rand(2, 5, 4))
