"""`+csc` and `+sca`: a rival's tokens with CoViST's composition and attention."""

import pytest
import torch
from support.images import image, inside

from covist.config import CovistConfig
from covist.formulas.composition import compose
from covist.methods.covist import CovistFixed
from covist.methods.create import create_method
from covist.methods.published.divprune import DivPrune


def test_composition_keeps_the_selectors_tokens_and_composes_the_rest():
    context = image(seed=2)
    plain = DivPrune().begin(context, 12)
    composed = create_method("divprune+csc").begin(context, 12)
    assert composed.state.indices.tolist() == plain.state.indices.tolist()
    assert composed.state.weights.max() > 1 and plain.state.weights.max() == 1
    assert composed.assignment.shape == (context.grid.size,)


def test_composition_is_covists_own():
    """With CoViST's own tokens the combination gives CoViST's own state."""
    context = image(seed=2, clip=True)
    ours = CovistFixed().begin(context, 12)
    method = create_method("uniform+csc")
    method._base.select = lambda image, count: ours.state.indices
    theirs = method.begin(context, 12)
    torch.testing.assert_close(theirs.state.weights, ours.state.weights)
    torch.testing.assert_close(theirs.state.features, ours.state.features)
    torch.testing.assert_close(theirs.withheld, ours.withheld, atol=1e-6, rtol=0)


def test_composition_follows_the_config():
    context = image(seed=2)
    method = create_method("divprune+csc", config=CovistConfig(contributions=False, content=False))
    state = method.begin(context, 12).state
    assert state.weights.tolist() == [1.0] * 12
    assert torch.equal(state.features, context.signals.embeddings[state.indices])


def test_composition_inside_the_decoder_inherits_weights():
    context = image(seed=1)
    method = create_method("fastv+csc")
    state = method.begin(context, context.grid.size).state
    _, view = inside(context, 2, method)
    state = state.with_features(view.hidden[view.visual]).replace(weights=torch.full((context.grid.size,), 1.5))
    reduced = method.reduce(state, view, 10).state
    expected = compose(state, reduced.indices, torch.ones(35) / 35, CovistConfig()).state
    torch.testing.assert_close(reduced.weights, expected.weights)


def test_attention_is_covists_own():
    decoder = image().decoder
    rule, ours = create_method("divprune+sca").attention_rule(decoder), CovistFixed().attention_rule(decoder)
    assert torch.equal(rule.scale, ours.scale) and rule.distances is not None and rule.distances == ours.distances
    assert create_method("divprune+csc").attention_rule(decoder) is None


def test_an_option_that_a_method_does_not_have_is_refused():
    with pytest.raises(ValueError, match="divprune reads no constants of CoViST; omit config="):
        create_method("divprune", config=CovistConfig())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("visionzip+csc", "visionzip writes the content"),
        ("covist-fixed+csc", "covist-fixed already has CoViST's composition and attention"),
        ("covist-pro+sca", "covist-pro already has CoViST's composition and attention"),
        ("divprune+xyz", "not 'xyz'"),
        ("nonsense+csc", "unknown method 'nonsense'"),
        ("prumerge+", "not ''"),
    ],
)
def test_impossible_combinations_are_refused_in_one_line(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        create_method(name)
    assert "\n" not in str(caught.value)
