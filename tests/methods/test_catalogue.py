"""What `covist methods` says is complete: every setting has a meaning, and the defaults are the real ones."""

import pytest

from covist import CovistConfig, available_methods, create_method
from covist.errors import CovistError
from covist.methods.catalogue import describe
from covist.methods.registry import option_defaults, option_meanings, option_names


@pytest.mark.parametrize("name", available_methods())
def test_every_option_of_a_constructor_is_described(name):
    method = available_methods()[name]
    assert set(option_names(method)) == set(option_meanings(method))
    assert all(option_meanings(method).values())


@pytest.mark.parametrize("name", [*available_methods(), "divprune+csc", "fastv+csc", "tome+sca", "holov+csc+sca"])
def test_every_setting_that_is_listed_is_taken_with_its_default(name):
    for setting in describe(name)["settings"]:
        assert setting["meaning"], setting["name"]
        create_method(name, **{setting["name"]: setting["default"]})


def test_constants_are_those_that_the_method_reads():
    listed = [setting["name"] for setting in describe("covist-fixed")["settings"]]
    read = CovistConfig.fields_of(available_methods()["covist-fixed"].reads_constants)
    assert listed == [*option_names(available_methods()["covist-fixed"]), *read]
    assert "stage_depths" not in listed


def test_defaults_are_those_of_the_constructor():
    assert option_defaults(available_methods()["vispruner"]) == {"important": 0.5, "positions": None}
    settings = {setting["name"]: setting["default"] for setting in describe("vispruner")["settings"]}
    assert settings == {"important": 0.5, "positions": "reindex"}


@pytest.mark.parametrize(
    ("name", "where"),
    [("divprune", "before"), ("fastv", "inside"), ("covist-pro", "both"), ("vscan", "both"), ("fastv+csc", "inside")],
)
def test_where_a_method_acts_follows_from_its_schedule(name, where):
    assert describe(name)["where"] == where


def test_a_combination_keeps_positions_for_the_attention_and_says_what_is_added():
    assert describe("divprune+csc")["positions"] == "reindex"
    both = describe("divprune+csc+sca")
    assert both["positions"] == "keep"
    assert both["acts"].index("composition") < both["acts"].index("attention")


@pytest.mark.parametrize("name", ["vanilla", "magic", "divprune+magic", "tome+csc"])
def test_what_is_no_method_is_refused(name):
    with pytest.raises(CovistError):
        describe(name)
