import pickle

import pytest
import torch

import covist.state
from covist.config import CovistConfig
from covist.formulas.composition import compose
from covist.grid import Grid
from covist.state import VisualState
from formulas.inputs import random_state

FIELDS = ("features", "indices", "positions", "weights", "affinity", "anchors")


def test_initial_state_represents_every_token_by_itself():
    state = VisualState.initial(torch.randn(6, 4), torch.arange(6) + 3, torch.eye(6), Grid(((2, 3),)))
    assert state.count == 6
    assert state.weights.tolist() == [1] * 6
    assert state.indices.tolist() == list(range(6))
    assert not state.anchors.any()


def test_restriction_indexes_every_field_alike():
    state, kept = random_state(10, axes=3), torch.tensor([1, 4, 7])
    part = state.restrict(kept)
    for name in ("features", "indices", "positions", "weights", "anchors"):
        assert torch.equal(getattr(part, name), getattr(state, name)[kept])
    assert torch.equal(part.affinity, state.affinity[kept][:, kept])
    assert torch.equal(part.coordinates, state.coordinates[kept])


def test_companions_go_where_the_features_go():
    state, kept = random_state(10), torch.tensor([1, 4, 7])
    state = state.replace(companions={1: torch.randn(10, 16), 3: torch.randn(10, 16)})
    part = state.restrict(kept)
    assert all(torch.equal(part.companions[layer], state.companions[layer][kept]) for layer in (1, 3))
    assert state.to(dtype=torch.float16).companions[3].dtype == torch.float16


def test_a_layer_has_added_the_companions_that_were_due_before_it():
    state = random_state(4).replace(companions={layer: torch.randn(4, 16) for layer in (1, 2, 3)})
    hidden = torch.randn(4, 16)
    inside = state.entering(2, hidden)
    assert torch.equal(inside.features, hidden) and set(inside.companions) == {3}


def test_coordinates_come_from_the_original_indices():
    state = random_state(5)
    rows, columns = state.indices // 9, state.indices % 9
    assert torch.allclose(state.coordinates, torch.stack([(columns + 0.5) / 9, (rows + 0.5) / 7], dim=-1))


def test_state_survives_pickling():
    state = random_state(5)
    copy = pickle.loads(pickle.dumps(state))
    assert all(torch.equal(getattr(copy, name), getattr(state, name)) for name in FIELDS)
    assert copy.grid == state.grid


def test_conversion_touches_the_dtype_of_features_only():
    state = random_state(5).to(device="cpu", dtype=torch.float16)
    assert state.features.dtype == torch.float16
    assert state.weights.dtype == state.affinity.dtype == torch.float32


def test_composing_without_affinities_is_refused():
    state = random_state(5).replace(affinity=None)
    assert state.restrict(torch.tensor([1, 3])).affinity is None
    with pytest.raises(ValueError, match="compose: the state has no affinities"):
        compose(state, torch.tensor([1, 3]), torch.ones(5), CovistConfig())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"features": torch.randn(4, 16)}, "indices must have shape"),
        ({"features": torch.full((5, 16), torch.nan)}, "features contains NaN"),
        ({"weights": torch.tensor([1.0, 1, 1, 1, 0.5])}, "weights must be at least 1"),
        ({"weights": torch.ones(5).double()}, "weights must be float32"),
        ({"weights": torch.ones(4)}, r"weights must have shape \[5\], got \[4\]"),
        ({"affinity": torch.ones(5, 4)}, r"affinity must have shape \[5, 5\]"),
        ({"anchors": torch.zeros(5)}, "anchors must be bool"),
        ({"indices": torch.tensor([0, 1, 1, 2, 3])}, "indices must increase"),
        ({"indices": torch.tensor([0, 1, 2, 3, 63])}, "indices must lie in the grid of 63"),
        ({"positions": torch.zeros(4)}, "positions must have shape"),
        ({"companions": {2: torch.zeros(4, 16)}}, r"companions of layer 2 must have shape \[5, 16\]"),
        ({"companions": {2: torch.full((5, 16), torch.inf)}}, "companions of layer 2 contains"),
        ({"positions": torch.zeros(5, 2, 2)}, r"positions must be \[K\] or \[K, axes\]"),
    ],
)
def test_an_inconsistent_state_is_refused(changes, message):
    with pytest.raises(ValueError, match=f"VisualState: {message}"):
        random_state(5).replace(**changes)


def test_production_skips_validation(monkeypatch):
    monkeypatch.setattr(covist.state, "VALIDATE", False)
    random_state(5).replace(weights=torch.zeros(5))
