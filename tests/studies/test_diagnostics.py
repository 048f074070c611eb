import pytest
from studies.diagnostics import attention_gaps, table


@pytest.fixture(scope="module")
def gaps(untrained):
    names = "covist-fixed,covist-fixed:attention=off,random:positions=keep"
    return {gap.method: gap for gap in attention_gaps(names, 24, limit=1, model=untrained)}


def test_vanilla_has_no_error(gaps):
    assert gaps["vanilla"].error == [0, 0, 0, 0]
    assert all(0 < mass < 1 for mass in gaps["vanilla"].mass)


def test_a_budget_of_all_tokens_has_no_error(untrained):
    _, everything = attention_gaps("covist-fixed", "100%", limit=1, model=untrained)
    assert max(everything.error) < 1e-5


def test_compression_has_an_error_in_every_layer(gaps):
    assert all(error > 0 for error in gaps["random:positions=keep"].error)


def test_the_bias_raises_the_attention_on_the_image(gaps):
    with_bias, without = gaps["covist-fixed"], gaps["covist-fixed:attention=off"]
    assert with_bias.mass[0] > without.mass[0]
    assert with_bias.error[0] != without.error[0]


def test_the_model_gets_its_attention_backend_back(untrained, gaps):
    assert untrained[0].model.language_model.config._attn_implementation == "sdpa"


def test_the_table_has_a_row_per_method(gaps):
    lines = table(list(gaps.values())).splitlines()
    assert len(lines) == 2 + len(gaps)
    assert lines[3].startswith("| covist-fixed | ")
