"""The closed forms of the study of linear layers equal what they stand for."""

import pytest
import torch
from studies import linear_layers
from torch.testing import assert_close
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

TIMES = 3


@pytest.fixture
def token(monkeypatch):
    """Query, key and value [1, 1, heads, width] of a token that stands for three, and what writes it, [1, 1, heads]."""
    monkeypatch.setattr(linear_layers, "represented", lambda: torch.full((1, 1), float(TIMES)))
    parts = torch.randn(4, 1, 1, 2, 8, generator=torch.Generator().manual_seed(0))
    return *parts[:3], parts[3, ..., 0]


def written(query, key, value, decay, strength, times):
    parts = [part.repeat_interleave(times, 1) for part in (query, key, value, decay, strength)]
    options = {"initial_state": torch.ones(1, 2, 8, 8), "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return torch_recurrent_gated_delta_rule(*parts[:3], g=parts[3], beta=parts[4], **options)[1]


def test_a_strengthened_token_corrects_the_state_as_its_copies_would(token):
    *read, raw = token
    stronger = linear_layers.strengthen(None, (), raw).sigmoid()
    kept = torch.zeros_like(raw)
    assert_close(written(*read, kept, stronger, 1), written(*read, kept, raw.sigmoid(), TIMES))


def test_an_aged_token_lets_the_state_decay_as_its_copies_would(token):
    *read, raw = token
    bias, nothing = torch.tensor([-2.0, 0.5]), torch.zeros_like(raw)
    older = -torch.nn.functional.softplus(linear_layers.age(bias, None, (), raw) + bias)
    once = -torch.nn.functional.softplus(raw + bias)
    assert_close(written(*read, older, nothing, 1), written(*read, once, nothing, TIMES))


def test_copies_are_taken_back(monkeypatch):
    monkeypatch.setattr(linear_layers, "represented", lambda: torch.tensor([[1.0, 3.0, 1.0]]))
    hidden = torch.arange(6.0).view(1, 3, 2)
    _, given = linear_layers.give_copies(None, (), {"hidden_states": hidden, "attention_mask": torch.ones(1, 3)})
    assert given["hidden_states"].shape == (1, 5, 2) and given["attention_mask"].shape == (1, 5)
    assert torch.equal(linear_layers.take_last_copy(None, (), given["hidden_states"]), hidden)
