"""Systems of the paper that are not here: each has its reason, and whoever asks for one is told."""

import pytest

from covist import available_methods, create_method
from covist.errors import CovistError
from covist.methods.absent import WHY, absent_named, absent_systems

SYSTEMS = absent_systems()


def test_every_entry_is_whole_and_occurs_once():
    assert all(one.name and one.venue and one.listed and one.why in WHY for one in SYSTEMS)
    assert all(one.missing for one in SYSTEMS if one.why != "no public text")
    assert len({absent_named(one.name) for one in SYSTEMS}) == len(SYSTEMS)


@pytest.mark.parametrize("written", ["hidrop", "HiDrop", "hi-drop", "HIDROP"])
def test_a_system_is_found_however_it_is_written(written):
    assert absent_named(written).name == "HiDrop"


def test_a_superscript_is_a_digit():
    assert absent_named("d2pruner").name == "D²Pruner" and absent_named("s2-prune").name == "S²Prune"


@pytest.mark.parametrize("name", [one.name for one in SYSTEMS if one.name.lower() not in available_methods()])
def test_asking_for_an_absent_method_says_why_it_is_absent(name):
    with pytest.raises(CovistError) as refused:
        create_method(name)
    assert f"{name} (" in str(refused.value) and WHY[absent_named(name).why] in str(refused.value)


def test_any_other_unknown_name_gets_the_choices():
    assert absent_named("nonsense") is None
    with pytest.raises(CovistError, match="choose one of"):
        create_method("nonsense")
