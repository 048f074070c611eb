"""Weights that change under a running handle: the gains follow, by themselves or on request."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.llava import ask
from support.requests import assert_same, greedy

from covist.engine.decoder import FrozenDecoder
from covist.errors import CovistError

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TARGETS = r".*language_model.*(q_proj|k_proj)"


def fresh(model, compress, strategy):
    """What a handle on a copy of the model as it is now answers."""
    other = copy.deepcopy(model)
    handle = compress(other, budget=24, strategy=strategy)
    answer = greedy(other, ask(PROMPT), 3)
    handle.remove()
    return answer


@pytest.fixture
def adapted(grouped_query):
    """Two adapters, of which the first is active."""
    torch.manual_seed(7)
    options = {"r": 4, "lora_alpha": 32, "target_modules": TARGETS, "init_lora_weights": False}
    model = get_peft_model(copy.deepcopy(grouped_query), LoraConfig(**options), adapter_name="first")
    model.add_adapter("second", LoraConfig(**options))
    return model.eval()


CHANGES = {
    "merged": lambda model: model.merge_adapter(),
    "switched": lambda model: model.set_adapter("second"),
    "disabled": lambda model: model.base_model.disable_adapter_layers(),
    "trained": lambda model: [p.mul_(1.5) for name, p in model.named_parameters() if "lora_B.first" in name],
    "replaced": lambda model: model.merge_and_unload(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_prefill_notices_changed_weights(adapted, compress, strategy, change):
    base = adapted.get_base_model()
    handle = compress(adapted, budget=24, strategy=strategy)
    greedy(base, ask(PROMPT), 1)
    gains = handle.settings.decoder.head_gains((0.6, 1.4))
    change(adapted)
    answer = greedy(base, ask(PROMPT), 3)
    if change is not CHANGES["merged"] and change is not CHANGES["replaced"]:  # which leave the effective weights
        assert not torch.allclose(handle.settings.decoder.head_gains((0.6, 1.4)), gains, atol=1e-3)
    handle.remove()
    assert_same(answer, fresh(base, compress, strategy), 1e-4)


def test_unchanged_weights_are_not_read_again(grouped_query, compress, monkeypatch):
    handle = compress(grouped_query, budget=24)
    monkeypatch.setattr(FrozenDecoder, "refresh", lambda self: pytest.fail("read again"))
    for _ in range(2):
        greedy(grouped_query, ask(PROMPT), 3)
    assert handle.report is not None


def test_refresh_follows_writes_that_leave_no_trace(grouped_query, compress, strategy):
    model = copy.deepcopy(grouped_query)
    handle = compress(model, budget=24, strategy=strategy)
    greedy(model, ask(PROMPT), 1)
    installed = handle._hooks._installed
    for layer in model.model.language_model.layers[::2]:
        layer.self_attn.q_proj.weight.data[::3] *= 4
    handle.refresh()
    answer = greedy(model, ask(PROMPT), 3)
    assert handle._hooks._installed is installed
    handle.remove()
    assert_same(answer, fresh(model, compress, strategy), 1e-5)


def test_refresh_reads_the_distances_again(grouped_query, compress):
    model = copy.deepcopy(grouped_query)
    handle = compress(model, budget=24)
    before = handle.settings.decoder.distances[0].inverse_frequencies
    model.model.language_model.rotary_emb.inv_freq.mul_(0.5)
    handle.refresh()
    assert torch.equal(handle.settings.rule.distances[0].inverse_frequencies, before / 2)


def test_a_removed_handle_cannot_be_refreshed(grouped_query, compress):
    handle = compress(grouped_query, budget=24)
    handle.remove()
    with pytest.raises(CovistError, match="this handle has been removed"):
        handle.refresh()
