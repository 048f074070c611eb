"""An image that ages step by step."""

import torch
from studies.ages import StepByStep
from support.images import image

from covist.methods.covist_max import CovistMax


def test_steps_keep_the_same_tokens_and_only_share_out_the_others_differently(monkeypatch):
    context = image(seed=3)
    tokens = context.grid.size
    once = CovistMax().begin(context, 4).state
    monkeypatch.setattr(StepByStep, "ages", ())
    same = StepByStep().begin(context, 4).state
    assert torch.equal(same.weights, once.weights) and torch.equal(same.features, once.features)
    monkeypatch.setattr(StepByStep, "ages", (20, 12, 8))
    aged = StepByStep().begin(context, 4)
    assert torch.equal(aged.state.indices, once.indices)
    assert aged.state.weights.sum() == tokens == len(aged.assignment)
    assert torch.equal(aged.assignment[aged.state.indices], torch.arange(4))
    assert not torch.equal(aged.state.weights, once.weights)
