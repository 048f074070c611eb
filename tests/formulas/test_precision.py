"""The method computes in float32, whatever the default dtype is, and whether gradients are recorded."""

import pytest
import torch

from covist.config import CovistConfig
from covist.formulas.composition import compose
from covist.formulas.selection import initial_selection
from covist.state import VisualState
from formulas.inputs import image

CONFIG = CovistConfig()
MADE = image()


def signals():
    return MADE.attention, MADE.keys, MADE.embeddings, MADE.grid


@pytest.fixture
def default_dtype():
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_new_tensors_does_not_matter(dtype, default_dtype):
    expected, s = initial_selection(*signals(), 9, CONFIG)
    default_dtype(dtype)
    found, _ = initial_selection(*signals(), 9, CONFIG)
    assert found.kept.tolist() == expected.kept.tolist()
    state = VisualState.initial(MADE.embeddings, torch.arange(MADE.size), s, MADE.grid)
    composed = compose(state, found.kept, found.evidence, CONFIG).state
    assert composed.weights.dtype == composed.features.dtype == composed.coordinates.dtype == torch.float32


def test_features_that_record_gradients_can_be_selected_and_composed():
    embeddings = MADE.embeddings.clone().requires_grad_()
    selection, s = initial_selection(MADE.attention, MADE.keys, embeddings, MADE.grid, 9, CONFIG)
    state = VisualState.initial(embeddings, torch.arange(MADE.size), s, MADE.grid)
    compose(state, selection.kept, selection.evidence, CONFIG).state.features.sum().backward()
    assert embeddings.grad[selection.kept].abs().sum() > 0
