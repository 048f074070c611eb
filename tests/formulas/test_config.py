import dataclasses

import pytest

from covist.config import CovistConfig


def test_defaults_are_the_constants_table_of_the_paper():
    config = CovistConfig()
    expected = {
        "evidence_exponent": 1.5,
        "uniform_coefficients": ((64, 0.40), (128, 0.30), (192, 0.25)),
        "uniform_ceiling": 0.60,
        "instruction_weight": 0.30,
        "instruction_weight_first_layer": 0.15,
        "selectivity_scale": 0.10,
        "regions": 16,
        "region_uniform": 0.10,
        "core_base": 0.25,
        "core_slope": 0.45,
        "anchor_fraction": 0.25,
        "anchor_limit": 24,
        "reserve": 0.05,
        "transfer_exponent": 2.0,
        "weight_limit": 8.0,
        "content_step": 0.15,
        "content_confidence": 0.75,
        "gain_range": (0.6, 1.4),
        "first_stage_gain": 0.8,
        "stage_depths": (14 / 32, 24 / 32),
        "first_stage_ratio": 1.5,
        "last_stage_ratio": 0.25,
        "coordinate_quota": 0.10,
        "spatial_quota": 0.125,
        "epsilon": 1e-8,
        "instruction_sign": -1,
    }
    assert {name: getattr(config, name) for name in expected} == expected


def test_the_strategy_is_not_accepted_as_a_constant():
    """Fixed or Pro is said in one place, the name of the method."""
    with pytest.raises(ValueError, match="holds constants only; choose fixed or pro with strategy="):
        CovistConfig.from_dict({"strategy": "pro"})


def test_every_field_belongs_to_a_part():
    parts = CovistConfig.parts()
    assert set(parts) == {item.name for item in dataclasses.fields(CovistConfig)}
    assert CovistConfig.fields_of(["attention"]) == ["epsilon", "gain_range", "attention", "head_gains", "distance"]


def test_every_field_is_documented():
    text = CovistConfig.describe()
    assert all(f"{item.name} = " in text and item.metadata["doc"] for item in dataclasses.fields(CovistConfig))


def test_cumulative_rows_add_one_step_each():
    rows = {letter: CovistConfig.cumulative_row(letter) for letter in "abcdefgh"}
    first = rows["a"]
    assert (first.contributions, first.reserve, first.head_gains, first.content) == (False, 0.0, False, False)
    assert first.position_span == "rule" and first.distance and first.attention
    steps = {
        "b": "contributions",
        "c": "reserve",
        "d": "head_gains",
        "e": "content",
        "f": "position_span",
        "h": "inheritance",
    }
    for letter, field in steps.items():
        before, after = rows[chr(ord(letter) - 1)].to_dict(), rows[letter].to_dict()
        assert [name for name in after if after[name] != before[name]] == [field]
    assert rows["f"] == CovistConfig() and rows["h"] == CovistConfig()
    with pytest.raises(ValueError, match="letter must be one of a to h, got 'i'"):
        CovistConfig.cumulative_row("i")


def test_json_round_trip(tmp_path):
    config = CovistConfig(reserve=0.08, position_span=288, gain_range=(0.5, 1.5))
    assert CovistConfig.from_dict(config.to_dict()) == config
    config.save(tmp_path / "config.json")
    assert CovistConfig.load(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    "field, value, allowed",
    [
        ("coordinate_rule", "slow", "one of 'rope', 'grid'"),
        ("reserve", 1.5, r"in \[0, 1\]"),
        ("reserve", float("nan"), r"in \[0, 1\]"),
        ("reserve", "5%", r"in \[0, 1\]"),
        ("weight_limit", 0.5, "a finite number of at least 1"),
        ("content_step", float("inf"), "a finite number of at least 0"),
        ("epsilon", 0.0, r"in \[1e-12, 0.001\]"),
        ("evidence_exponent", -1, "a finite number of at least 0"),
        ("instruction_sign", 0, "one of -1, 1"),
        ("content", 1, "one of True, False"),
        ("regions", 2.5, "an integer"),
        ("gain_range", (1.4, 0.6), "the smaller one first"),
        ("gain_range", (0.6,), "the smaller one first"),
        ("gain_range", 0.6, "the smaller one first"),
        ("gain_range", ("low", "high"), "the smaller one first"),
        ("gain_range", (0.6, float("inf")), "the smaller one first"),
        ("stage_depths", (0.8, 0.4), "two increasing fractions"),
        ("stage_depths", (0.2, 0.4, 0.6), "two increasing fractions"),
        ("uniform_coefficients", ((128, 0.3), (64, 0.4)), "increasing counts"),
        ("uniform_coefficients", (), "increasing counts"),
        ("uniform_coefficients", 0.3, "increasing counts"),
        ("uniform_coefficients", ((64,),), "increasing counts"),
        ("uniform_coefficients", ((64, "much"),), "increasing counts"),
        ("position_span", 0, "a positive integer"),
        ("position_span", "all", "a positive integer"),
        ("position_span", float("inf"), "a positive integer"),
        ("coordinate_rule", "random", "one of 'rope', 'grid'"),
    ],
)
def test_bad_values_are_refused_with_field_value_and_range(field, value, allowed):
    with pytest.raises(ValueError, match=f"CovistConfig.{field} must be .*{allowed}.*got "):
        CovistConfig(**{field: value})


def test_lists_are_taken_as_tuples():
    config = CovistConfig(gain_range=[0.5, 1.5], uniform_coefficients=[[64, 0.4], [128, 0.3]])
    assert config.gain_range == (0.5, 1.5)
    assert CovistConfig.from_dict(config.to_dict()) == config


def test_unknown_fields_are_refused():
    with pytest.raises(ValueError, match="expected an object with one value per field, got 64"):
        CovistConfig.from_dict(64)
    with pytest.raises(ValueError, match="unknown field budget"):
        CovistConfig.from_dict({"budget": 64})
