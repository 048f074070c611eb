"""Attention backends that take a mask agree."""

import pytest
import torch
from support.conversations import padded_conversation
from support.masks import added_by

from covist.contract.method import AttentionRule
from covist.engine.attention.mask import StageAttention
from covist.engine.sequence.ledger import Keys, Ledger
from covist.formulas.attention import DistanceTable


@pytest.fixture
def backend(model):
    """Sets the decoder's backend and puts the former one back."""
    former = model.config.text_config._attn_implementation
    yield lambda name: model.set_attn_implementation({"text_config": name})
    model.set_attn_implementation({"text_config": former})


@pytest.mark.parametrize("budget", [24, 144])
def test_eager_agrees_with_sdpa(model, strategy, compress, backend, budget):
    compress(model, budget=budget, strategy=strategy)
    expected = padded_conversation(model)
    backend("eager")
    torch.testing.assert_close(padded_conversation(model), expected, atol=1e-4, rtol=1e-4)
    assert model.config.vision_config._attn_implementation == "sdpa"


@pytest.mark.slow
@pytest.mark.parametrize("strategy, budget", [("fixed", 24), ("fixed", 144), ("pro", 24)])
def test_flex_attention_agrees_with_sdpa(model, strategy, budget, compress, backend):
    """Slow: flex attention is compiled for every new shape."""
    compress(model, budget=budget, strategy=strategy)
    expected = padded_conversation(model)
    backend("flex_attention")
    torch.testing.assert_close(padded_conversation(model), expected, atol=1e-4, rtol=1e-4)


# -- masks in the form of each backend ---------------------------------------------------------------------------------


def small_ledger(reduced):
    """Two samples of five keys; the second has one key of padding, both two keys of an image."""
    keys = Keys(
        rows=torch.tensor([[0, 1, 5, 9, 10], [0, 6, 8, 13, 14]]),
        positions=torch.tensor([[0, 1, 5, 9, 10], [0, 0, 2, 7, 8]]),
        valid=torch.tensor([[True] * 5, [False] + [True] * 4]),
        image=torch.tensor([[-1, 0, 0, -1, -1], [-1, -1, 0, 0, -1]]),
        log_weight=torch.tensor([[0.0, 0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75, 0.0]]),
    )
    return Ledger(
        joined=keys,
        shift=torch.zeros(2, dtype=torch.long),
        shifted=False,
        padded=True,
        reduced=reduced,
        reach=10,
        given=15,
        images=1,
    )


@pytest.mark.parametrize("backend_name", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("queries", [5, 2, 1])
def test_every_backend_gets_the_same_bias(backend_name, reduced, queries):
    ledger, scale = small_ledger(reduced), torch.tensor([[1.0, 2.0, 0.5], [0.1, 0.2, 0.3]])
    attention = StageAttention(ledger, queries, AttentionRule(scale))
    for layer in (0, 1):
        added = added_by(attention, layer, queries, heads=3, backend=backend_name)
        for sample in (0, 1):
            for query in range(queries):
                own = 5 - queries + query
                for key in range(5):
                    visible = key == own or (key < own and bool(ledger.keys.valid[sample, key]))
                    values = added[sample, :, query, key]
                    if visible:
                        expected = scale[layer] * ledger.keys.log_weight[sample, key] * reduced
                        torch.testing.assert_close(values.expand(3), expected)
                    else:
                        assert (values < -1e30).all()


def test_masks_know_the_largest_distance_without_asking_the_device(monkeypatch):
    ledger, table = small_ledger(True), DistanceTable(torch.tensor([1.0, 0.1]))
    table.log_factor(ledger.keys.positions, ledger.keys.positions)  # builds the table
    monkeypatch.setattr(torch.Tensor, "max", None)
    added = added_by(StageAttention(ledger, 5, AttentionRule(torch.ones(1, 1), distances=(table,))), 0, 5)
    distance = torch.tensor(9.0)  # from the last query of the first sample to its first visual key
    factor = torch.log(2 - (distance.cos() + (0.1 * distance).cos()) / 2)
    torch.testing.assert_close(added[0, 0, 4, 1], factor + 0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_stay_finite_in_half_precision(dtype):
    attention = StageAttention(small_ledger(True), 5, AttentionRule(torch.ones(1, 2)))
    values = added_by(attention, 0, 5, heads=2, dtype=dtype)
    assert values.dtype == dtype and values.isfinite().all()
    assert added_by(attention, 0, 5, heads=2).isfinite().all()


def test_sdpa_without_bias_or_padding_needs_no_mask():
    ledger = Ledger.of_text(torch.arange(4)[None], torch.ones(1, 4, dtype=torch.bool))
    for queries, implicit in ((4, True), (1, True), (2, False)):
        assert (added_by(StageAttention(ledger, queries, None), 0, queries, heads=2) is None) == implicit


@pytest.mark.parametrize("uniform", [False, True])
def test_layers_without_positions_get_the_weights_alone(uniform):
    ledger, table = small_ledger(True), DistanceTable(torch.tensor([1.0, 0.1]))

    def added(layer, **options):
        rule = AttentionRule(torch.ones(3, 1), mean_weights=frozenset({0} if uniform else {}), **options)
        return added_by(StageAttention(ledger, 5, rule), layer, 5)

    for layer in (0, 1, 2):
        expected = added(layer) if layer < 2 else added(layer, distances=(table,) * 3)
        found = added(layer, distances=(None, None, table))
        assert torch.equal(found, expected)
    assert not torch.equal(added(1), added(1, distances=(table,) * 3))
