"""The report says what the model really did."""

import json

import pytest
import torch
from support.llava import LAYERS, TOKENS, WIDTH, ask, processor
from support.requests import greedy

import covist
from covist.methods.covist import CovistFixed

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


@pytest.fixture
def lengths(multi_head):
    """Sequence length that each decoder layer received in the last call."""
    seen = {}
    hooks = [
        layer.mlp.register_forward_hook(lambda _, args, __, n=n: seen.__setitem__(n, args[0].shape[1]))
        for n, layer in enumerate(multi_head.model.language_model.layers)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def test_tokens_per_layer_are_those_the_layers_received(multi_head, strategy, compress, lengths):
    inputs = ask(PROMPT)
    handle = compress(multi_head, budget=24, strategy=strategy)
    multi_head(**inputs)
    text = inputs["input_ids"].shape[1] - TOKENS
    report = handle.report
    assert [count + text for count in report.images[0].tokens_per_layer] == [lengths[n] for n in range(LAYERS)]
    assert report.text_tokens == (text,) and report.mean_tokens == 24
    n = torch.tensor([lengths[layer] for layer in range(LAYERS)], dtype=torch.float64)
    flops = 8 * n * WIDTH**2 + 4 * n**2 * WIDTH + 6 * n * WIDTH * 64
    assert report.flops == pytest.approx(float(flops.sum()))
    assert report.flops < report.flops_uncompressed / 3


def test_stages_are_closed_and_serialisable(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    greedy(multi_head, ask(PROMPT), 2)
    stages = handle.report.images[0].stages
    assert [stage.depth for stage in stages] == ([0] if strategy == "fixed" else [0, 4, 6])
    for earlier, later in zip(stages, stages[1:], strict=False):
        assert set(later.indices.tolist()) <= set(earlier.indices.tolist())
        assert len(later.assignment) == len(earlier.indices)
    for stage in stages:
        assert stage.weights.min() >= 1 and stage.weights.max() <= 8 and stage.withheld >= 0
        assert torch.equal(stage.positions, stage.indices + 2)
    assert json.loads(json.dumps(handle.report.to_dict()))["mean_tokens"] == 24
    assert set(handle.report.seconds) == {"selection", "composition", "rest"}
    assert all(value >= 0 for value in handle.report.seconds.values())


def test_decoding_and_text_keep_the_report_of_the_last_image(multi_head, compress):
    handle = compress(multi_head, budget=24)
    greedy(multi_head, ask(PROMPT), 3)
    report = handle.report
    greedy(multi_head, ask("USER: what ? ASSISTANT:"), 2)
    assert handle.report is report


@pytest.mark.parametrize("budget", [0, -3, 1.5, "x", None, True])
def test_impossible_budgets_are_refused_at_once(multi_head, compress, budget):
    with pytest.raises(ValueError, match="budget must be"):
        compress(multi_head, budget=budget)
    assert covist.Compression.of(multi_head) is None


def test_contradictory_choices_are_refused(multi_head, compress):
    for options, message in (
        ({"strategy": "medium"}, "choose 'fixed' or 'pro'"),
        ({"strategy": "pro", "method": "covist-fixed"}, "not both"),
        ({"method": "nonsense"}, "unknown method 'nonsense'"),
        ({"processor": "llava"}, "processor=str: give the model's processor or its tokenizer"),
        ({"processor": processor().image_processor}, "give the model's processor or its tokenizer"),
        ({"config": {"beta": 2}}, "config=dict: give a CovistConfig"),
        ({"positions": "drop"}, "choose 'keep' or 'reindex'"),
        ({"method": CovistFixed(), "concentration": 0.1}, "has its options already"),
    ):
        with pytest.raises(ValueError, match=message):
            compress(multi_head, **options)
