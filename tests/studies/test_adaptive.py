"""Budgets that follow the image, in evaluations."""

import math

import pytest
from studies.adaptive import compare, table


def test_every_level_stands_beside_a_fixed_budget_of_as_many_tokens(untrained, tmp_path):
    (low, high), results = compare("covist-max", (0.3, 0.5), limit=2, model=untrained, out=tmp_path)
    assert low.mean_tokens <= high.mean_tokens
    for one in (low, high):
        assert abs(one.fixed_tokens - one.mean_tokens) <= 0.5
        assert math.isnan(one.difference) or one.difference == pytest.approx(one.retention - one.fixed_retention)
    assert {score.budget.written for score in results.scores} == {
        576,
        "auto:0.3",
        "auto:0.5",
        low.fixed_tokens,
        high.fixed_tokens,
    }
    assert table([low, high]).count("\n") == 3
    assert (tmp_path / "retention.png").exists()
