import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import composition as reference

from covist.config import CovistConfig
from covist.formulas.composition import compose, confidence, content, drop, forget_history
from covist.formulas.coverage import affinity
from covist.state import VisualState
from formulas.inputs import STRUCTURED, array, close, generator, random_state

CONFIG = CovistConfig()


@st.composite
def reductions(draw, max_count=24):
    """Any state with inherited weights, any set to keep, any non-negative evidence (zeros included)."""
    count = draw(st.integers(1, max_count))
    seed = draw(st.integers(0, 10_000))
    state = random_state(count + 2, seed).restrict(torch.arange(count))
    if draw(st.booleans()):
        state = state.replace(weights=1 + 7 * torch.rand(count, generator=generator(seed)))
    kept = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count)))
    evidence = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1e-3, 0.2, 1.0]), min_size=count, max_size=count)))
    return state, torch.tensor(kept), evidence


def literal(state, kept, evidence):
    return reference.compose(
        array(state.features),
        array(state.affinity),
        array(state.weights),
        array(state.coordinates),
        kept.tolist(),
        array(evidence),
    )


@given(reductions())
def test_composition_matches_the_reference(reduction):
    state, kept, evidence = reduction
    # a confidence at the threshold itself may fall on either side in float32
    removed = [j for j in range(state.count) if j not in kept]
    trust = confidence(state.affinity[removed][:, kept], state.coordinates[kept], state.coordinates[removed])
    assume(bool(((trust - CONFIG.content_confidence).abs() > 1e-4).all()))
    found = compose(state, kept, evidence, CONFIG)
    features, weights, withheld, assignment = literal(state, kept, evidence)
    close(found.state.features, features, 1e-4)
    close(found.state.weights, weights, 1e-4)
    assert found.assignment.tolist() == assignment
    assert float(found.withheld) == pytest.approx(withheld, rel=1e-4, abs=1e-4)


@given(reductions())
def test_companions_move_with_the_shares_of_the_features(reduction):
    """The literal Eq. 8 of each companion, under the evidence, affinities and confidences of the features."""
    state, kept, evidence = reduction
    companions = {layer: torch.randn(state.count, 16, generator=generator(layer)) for layer in (1, 3)}
    found = compose(state.replace(companions=companions), kept, evidence, CONFIG).state
    plain = compose(state, kept, evidence, CONFIG).state
    assert torch.equal(found.features, plain.features) and torch.equal(found.weights, plain.weights)
    assert set(found.companions) == {1, 3}
    for layer, own in companions.items():
        alone = compose(state.with_features(own), kept, evidence, CONFIG).state
        assert torch.equal(found.companions[layer], alone.features)


def test_companions_match_the_reference():
    made = STRUCTURED["dominant cluster"]()
    similarity = affinity(made.keys, made.embeddings)
    state = VisualState.initial(made.embeddings, torch.arange(made.size), similarity, made.grid)
    kept = torch.arange(0, made.size, 3)
    evidence = torch.rand(made.size, generator=generator(1))
    own = torch.randn(state.features.shape, generator=generator(2))
    found = compose(state.replace(companions={2: own}), kept, evidence, CONFIG).state
    expected, *_ = literal(state.with_features(own), kept, evidence)
    close(found.companions[2], expected, 1e-4)
    assert not torch.allclose(found.companions[2], own[kept], atol=1e-3)  # some did receive


@pytest.mark.parametrize("name", STRUCTURED)
def test_composition_matches_the_reference_on_structured_images(name):
    made = STRUCTURED[name]()
    state = VisualState.initial(
        made.embeddings, torch.arange(made.size), affinity(made.keys, made.embeddings), made.grid
    )
    evidence = torch.rand(made.size, generator=generator(4)).softmax(0)
    for count in {1, (made.size + 1) // 2, made.size}:
        kept = torch.linspace(0, made.size - 1, count).long()
        found = compose(state, kept, evidence, CONFIG)
        features, weights, withheld, assignment = literal(state, kept, evidence)
        assert found.assignment.tolist() == assignment
        close(found.state.features, features, 1e-4)
        close(found.state.weights, weights, 1e-4)
        assert float(found.withheld) == pytest.approx(withheld, abs=1e-5)


@given(reductions(), st.randoms(use_true_random=False))
def test_closure_down_to_one_representative(reduction, random):
    """Any A and any e give a state of the same form, and every further reduction applies to it."""
    state, kept, evidence = reduction
    composed = compose(state, kept, evidence, CONFIG).state
    while True:
        composed.validate()
        assert composed.count == len(kept)
        assert bool(((composed.weights >= 1) & (composed.weights <= CONFIG.weight_limit)).all())
        if composed.count == 1:
            break
        kept = torch.tensor(sorted(random.sample(range(composed.count), random.randint(1, composed.count - 1))))
        before = composed
        composed = compose(composed, kept, torch.tensor([random.random() for _ in range(before.count)]), CONFIG).state
        assert torch.equal(composed.indices, before.indices[kept])
        assert torch.equal(composed.positions, before.positions[kept])
        assert torch.equal(composed.anchors, before.anchors[kept])
        assert torch.equal(composed.affinity, before.affinity[kept][:, kept])


@given(reductions())
def test_clipping_identity(reduction):
    """Eq. 15: what the weights lose is exactly what the limit withholds."""
    state, kept, evidence = reduction
    removed = torch.ones(state.count, dtype=torch.bool)
    removed[kept] = False
    received = (evidence[kept] > 0).any() and removed.any()
    assume(bool(received))
    found = compose(state, kept, evidence, CONFIG)
    similarity = state.affinity[removed][:, kept].amax(-1)
    placed = float((evidence[kept][found.assignment[removed]] * state.weights[removed] * similarity**2).sum())
    assume(placed > 1e-8)
    total = float((evidence * state.weights).double().sum())
    lost = total - float((evidence[kept] * found.state.weights).double().sum())
    assert lost == pytest.approx(float(found.withheld), abs=1e-5 * max(1.0, total))


@given(reductions())
def test_contribution_is_conserved_when_nothing_is_clipped(reduction):
    state, kept, evidence = reduction
    evidence = evidence + 0.1
    found = compose(state, kept, evidence, CONFIG.replace(weight_limit=1e6))
    assume(bool((state.affinity[:, kept].amax(-1) > 1e-2).all()))
    assert float(found.withheld) == 0
    total = float((evidence * state.weights).double().sum())
    assert float((evidence[kept] * found.state.weights).double().sum()) == pytest.approx(total, rel=1e-5)


@given(reductions())
def test_content_keeps_every_norm(reduction):
    state, kept, evidence = reduction
    found = compose(state, kept, evidence, CONFIG.replace(content_confidence=0.0, content_step=2.0)).state.features
    close(found.norm(dim=-1), array(state.features[kept].norm(dim=-1)), 1e-5)


@given(reductions(), st.randoms(use_true_random=False))
def test_the_order_of_removed_tokens_does_not_matter(reduction, random):
    state, kept, evidence = reduction
    order = list(range(state.count))
    removed = [j for j in order if j not in kept.tolist()]
    for j, other in zip(removed, random.sample(removed, len(removed)), strict=True):
        order[j] = other
    permutation = torch.tensor(order)
    shuffled = VisualState(
        features=state.features[permutation],
        indices=state.indices,
        positions=state.positions,
        weights=state.weights[permutation],
        affinity=state.affinity[permutation][:, permutation],
        anchors=state.anchors,
        grid=state.grid,
    )
    config = CONFIG.replace(content=False)  # content also reads coordinates, which belong to the places
    one = compose(state, kept, evidence, config)
    other = compose(shuffled, kept, evidence[permutation], config)
    close(other.state.weights, array(one.state.weights), 1e-5)
    assert torch.equal(other.assignment, one.assignment[permutation])


def test_a_removed_token_goes_to_the_first_of_equal_representatives():
    state = random_state(6).replace(affinity=torch.ones(6, 6))
    found = compose(state, torch.tensor([1, 3, 4]), torch.ones(6), CONFIG)
    assert found.assignment.tolist() == [0, 0, 0, 1, 2, 0]


def test_keeping_everything_changes_nothing():
    state = random_state(9)
    found = compose(state, torch.arange(9), torch.rand(9), CONFIG)
    for name in ("features", "weights", "indices", "positions", "anchors", "affinity"):
        assert torch.equal(getattr(found.state, name), getattr(state, name))
    assert found.assignment.tolist() == list(range(9))
    assert float(found.withheld) == 0


def test_evidence_on_removed_tokens_only_moves_no_weight():
    """The denominator of lambda is zero, so lambda is zero."""
    state, kept = random_state(8), torch.tensor([0, 3])
    evidence = torch.ones(8)
    evidence[kept] = 0
    assert torch.equal(compose(state, kept, evidence, CONFIG).state.weights, state.weights[kept])


def test_without_confident_tokens_features_stay_bit_for_bit():
    state, kept = random_state(8), torch.tensor([0, 3])
    found = compose(state, kept, torch.ones(8), CONFIG.replace(content_confidence=1.0))
    assert torch.equal(found.state.features, state.features[kept])


def test_switches_turn_off_one_half_each():
    state, kept, evidence = random_state(12, seed=3), torch.tensor([1, 5, 8]), torch.rand(12, generator=generator())
    config = CONFIG.replace(content_confidence=0.0)
    full = compose(state, kept, evidence, config).state
    no_content = compose(state, kept, evidence, config.replace(content=False)).state
    no_weights = compose(state, kept, evidence, config.replace(contributions=False)).state
    assert torch.equal(no_content.features, state.features[kept]) and torch.equal(no_content.weights, full.weights)
    assert torch.equal(no_weights.weights, state.weights[kept]) and torch.equal(no_weights.features, full.features)
    assert not torch.equal(full.features, state.features[kept]) and not torch.equal(full.weights, state.weights[kept])


def test_half_precision_features_keep_their_dtype():
    state = random_state(10).to(dtype=torch.bfloat16)
    found = compose(state, torch.tensor([0, 4]), torch.ones(10), CONFIG)
    assert found.state.features.dtype == torch.bfloat16
    assert found.state.weights.dtype == torch.float32


def test_a_zero_feature_stays_zero():
    rotated = content(torch.zeros(1, 4), torch.ones(1, 4), CONFIG)
    assert not rotated.any()
    cancelled = content(torch.ones(1, 4), -torch.ones(1, 4), CONFIG.replace(content_step=1.0))
    assert torch.equal(cancelled, torch.ones(1, 4))


@pytest.mark.parametrize("kept", [1, 2, 10, 11, 70])
def test_confidence_matches_the_reference(kept):
    g = generator(kept)
    similarity = torch.rand(5, kept, generator=g)
    xy_kept, xy_removed = torch.rand(kept, 2, generator=g), torch.rand(5, 2, generator=g)
    expected = [
        reference.confidence(array(row), array(xy), array(xy_kept))
        for row, xy in zip(similarity, xy_removed, strict=True)
    ]
    close(confidence(similarity, xy_kept, xy_removed), expected)


def test_reduction_without_inheritance_sees_ordinary_tokens():
    state, kept = random_state(10), torch.tensor([2, 5, 9])
    ordinary = forget_history(state)
    assert ordinary.weights.tolist() == [1] * 10 and not ordinary.anchors.any()
    close(
        ordinary.affinity,
        torch.nn.functional.cosine_similarity(state.features[:, None], state.features[None], dim=-1).clamp(0, 1),
    )
    dropped = drop(ordinary, kept).state
    assert torch.equal(dropped.features, state.features[kept])
    assert dropped.weights.tolist() == [1, 1, 1]
    first = int(state.positions[2])
    assert dropped.positions.tolist() == [first, first + 1, first + 2]


@pytest.mark.parametrize(
    "kept, evidence, message",
    [
        ([0, 1], torch.ones(5), r"evidence must have shape \[6\]"),
        ([0, 1], torch.tensor([1.0, 1, 1, 1, 1, -0.5]), "evidence must not be negative"),
        ([0, 1], torch.tensor([1.0, 1, 1, 1, 1, float("nan")]), "evidence contains NaN"),
        ([0, 1], torch.tensor([1.0, 1, 1, 1, 1, float("inf")]), "evidence contains NaN or infinite"),
        ([], torch.ones(6), "kept must hold 1 to 6 tokens, got 0"),
        (list(range(7)), torch.ones(6), "kept must hold 1 to 6 tokens, got 7"),
        ([2, 1], torch.ones(6), "kept must be increasing indices below 6"),
        ([1, 1], torch.ones(6), "kept must be increasing"),
        ([-1, 2], torch.ones(6), "kept must be increasing"),
        ([1, 6], torch.ones(6), "kept must be increasing"),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(kept, evidence, message):
    state = random_state(6)
    before = {name: getattr(state, name).clone() for name in ("features", "weights", "affinity")}
    with pytest.raises(ValueError, match=f"compose: {message}"):
        compose(state, torch.tensor(kept, dtype=torch.long), evidence, CONFIG)
    assert all(torch.equal(getattr(state, name), value) for name, value in before.items())


def test_non_finite_features_are_refused(monkeypatch):
    monkeypatch.setattr("covist.state.VALIDATE", False)
    state = random_state(6)
    state.features[2, 1] = float("nan")
    with pytest.raises(ValueError, match="compose: features contains NaN"):
        compose(state, torch.tensor([0]), torch.ones(6), CONFIG)
