"""What `covist methods` says is complete: every setting has a meaning, and the defaults are the real ones."""

import re
from pathlib import Path

import pytest
from support import golden

from covist import CovistConfig, MethodInfo, available_methods, create_method
from covist.contract.kinds import CRITERIA, NEEDS
from covist.errors import CovistError
from covist.methods import published
from covist.methods.catalogue import describe, grouped, matching
from covist.methods.covist import Covist
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


BUILT_IN = {name: method for name, method in available_methods().items() if method.__module__.startswith("covist.")}
RIVALS = [name for name, method in BUILT_IN.items() if method.info.paper != "none" and not issubclass(method, Covist)]


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_says_what_is_published_what_is_ours_and_what_was_checked(name):
    info = available_methods()[name].info
    assert info.published and info.ours
    assert info.checked.startswith(("golden: ", "reference: "))


def test_every_section_about_published_methods_is_that_of_a_method_or_repeated_by_one():
    text = (Path(published.__file__).parent / "info.ini").read_text(encoding="utf-8")
    sections = re.findall(r"^\[(.+)\]$", text, re.MULTILINE)
    assert sections == sorted(sections), "sections are in alphabetical order"
    assert [name for name in sections if name not in BUILT_IN and f"${{{name}:" not in text] == []


@pytest.mark.parametrize("file", golden.files())
def test_every_golden_file_is_named_by_a_method(file):
    assert any(info.checked.startswith(f"golden: {file} (") for info in (BUILT_IN[name].info for name in RIVALS))


@pytest.mark.parametrize("file", golden.files())
def test_every_golden_file_is_used_by_a_test(file):
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_golden_*.py"))
    assert f'"{file}"' in tests


def test_a_method_need_not_say_how_it_was_checked_nor_its_criterion():
    info = MethodInfo(paper="none", acts="before the decoder", signals="none", budget="exactly K in every layer")
    assert (info.published, info.ours, info.checked, info.criterion, info.needs) == ("", "", "", "", None)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_of_ours_says_its_criterion_and_what_it_needs(name):
    info = BUILT_IN[name].info
    words = f"give its MethodInfo a criterion (one of {', '.join(CRITERIA)}) and needs (some of {', '.join(NEEDS)})"
    assert info.criterion and info.needs is not None, f"{name}: {words}; contract/kinds.py says what they mean"
    assert len(set(info.needs)) == len(info.needs)


@pytest.mark.parametrize("words", [{"criterion": "magic"}, {"needs": ("magic",)}, {"made_for": "magic"}])
def test_words_outside_the_vocabulary_are_refused(words):
    with pytest.raises(CovistError, match="magic.*choose"):
        MethodInfo("none", "before the decoder", "none", "exactly K in every layer", **words)


def test_a_method_without_criterion_or_needs_forms_its_own_group_and_matches_no_need():
    silent = {**describe("uniform"), "criterion": "", "needs": None}
    assert list(grouped([silent, describe("uniform")])) == [("before", "nothing"), ("before", "")]
    assert matching([silent], needs=["none"]) == [] and matching([silent], needs=["embeddings"]) == []
    assert matching([silent]) == [silent]


@pytest.mark.parametrize("name", ["vanilla", "magic", "divprune+magic", "tome+csc"])
def test_an_unknown_method_is_refused(name):
    with pytest.raises(CovistError):
        describe(name)
