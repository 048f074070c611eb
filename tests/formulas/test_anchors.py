import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import coverage as reference

from covist.config import CovistConfig
from covist.formulas.anchors import core_size, instruction_anchors, protected_tokens
from covist.formulas.coverage import affinity
from covist.formulas.evidence import visual_evidence
from formulas.inputs import STRUCTURED, array, generator, image

CONFIG = CovistConfig()


@given(st.integers(1, 60), st.integers(1, 120), st.integers(0, 1000), st.floats(0, 3))
def test_anchors_match_the_reference(size, count, seed, spread):
    """From near copies (spread 0) to unrelated tokens."""
    g = generator(seed)
    features = torch.ones(size, 6) + spread * torch.randn(size, 6, generator=g)
    s, pi = affinity(features, features), torch.rand(size, generator=g).softmax(0)
    assert instruction_anchors(pi, s, count, CONFIG).tolist() == reference.anchors(array(pi), array(s), count)


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize("count", [1, 7, 8, 40, 400])
def test_anchors_match_the_reference_on_structured_features(name, count):
    made = STRUCTURED[name]()
    s, pi = affinity(made.keys, made.embeddings), torch.full((made.size,), 1 / made.size)
    assert instruction_anchors(pi, s, count, CONFIG).tolist() == reference.anchors(array(pi), array(s), count)


def test_a_near_copy_of_an_anchor_is_skipped():
    s = torch.eye(40)
    s[0, 1] = s[1, 0] = 0.95
    anchors = instruction_anchors(torch.arange(40, 0, -1.0), s, 12, CONFIG)
    assert anchors.tolist() == [0, 2, 3]


def test_growth_stops_after_three_novel_anchors():
    anchors = instruction_anchors(torch.arange(100, 0, -1.0), torch.eye(100), 100, CONFIG)
    assert anchors.tolist() == list(range(100 // 12 + 3))


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 1000), st.data())
def test_protected_tokens_match_the_reference(size, concentration, seed, data):
    count = data.draw(st.integers(1, size))
    attention = torch.rand(size, generator=generator(seed)).round(decimals=1)  # with ties
    anchors = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=6))
    found = protected_tokens(attention, torch.tensor(anchors, dtype=torch.long), count, concentration, CONFIG)
    assert found.tolist() == reference.protected(array(attention), anchors, count, concentration)
    assert len(found) <= max(0, count - max(2, count // 8))


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_equal_attention_does_not_order_the_core(seed):
    """Uniform attention through the smoothing: equal on paper, a few roundings apart in float32."""
    made = image(((12, 12),), seed=seed)
    uniform = torch.full((made.size,), 1 / made.size)
    smoothed = visual_evidence(uniform, made.keys, made.embeddings, made.grid, CONFIG).attention
    assert smoothed.unique().numel() > 1
    none = torch.empty(0, dtype=torch.long)
    assert protected_tokens(smoothed, none, 40, 0.0, CONFIG).tolist() == list(range(10))


def test_noise_below_a_peak_does_not_order_the_core_either():
    attention = torch.full((50,), 0.01)
    attention[7], attention[30] = 0.5, 0.01 * (1 + 2e-7)
    none = torch.empty(0, dtype=torch.long)
    assert protected_tokens(attention, none, 40, 0.0, CONFIG).tolist() == [7, 0, 1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("copies", [1, 20, 200])
def test_anchors_match_the_reference_when_most_candidates_are_copies(copies):
    """More copies of the best candidates than are read at once."""
    g = generator(copies)
    features = torch.randn(30, 8, generator=g).repeat_interleave(copies, 0)
    s, pi = affinity(features, features), torch.arange(len(features), 0, -1.0).softmax(0)
    assert instruction_anchors(pi, s, 64, CONFIG).tolist() == reference.anchors(array(pi), array(s), 64)


def test_the_core_grows_with_concentration():
    assert [core_size(100, c, CONFIG) for c in (0.0, 0.25, 1.0)] == [25, 47, 70]
