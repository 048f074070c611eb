import pytest

from covist import CovistConfig
from covist.methods.covist import CovistFixed, CovistPro
from covist.methods.create import create_method
from covist.methods.grammar import is_vanilla, split_names
from covist.methods.registry import available_methods


def test_settings_stay_with_their_method_when_text_is_split_at_commas():
    text = "vanilla, covist-fixed:content=off,attention=off,random"
    assert split_names(text, []) == ["vanilla", "covist-fixed:content=off,attention=off", "random"]


def test_all_stands_for_every_registered_method():
    assert split_names("vanilla,all,random", list(available_methods())) == ["vanilla", *available_methods()]


def test_names_are_taken_once_and_in_order():
    assert split_names(["random", "vanilla", "random"], []) == ["random", "vanilla"]


def test_no_name_at_all_is_refused():
    with pytest.raises(ValueError, match="no method given"):
        split_names(" , ", [])


def test_vanilla_is_not_a_method():
    assert is_vanilla("vanilla") and not is_vanilla("random")
    with pytest.raises(ValueError, match="vanilla is the uncompressed model"):
        create_method("vanilla")
    with pytest.raises(ValueError, match="vanilla has no settings"):
        is_vanilla("vanilla:content=off")


@pytest.mark.parametrize("letter", "abcdefgh")
def test_rows_are_the_configurations_of_the_cumulative_study(letter):
    method = create_method(f"covist-row-{letter}")
    assert method.config == CovistConfig.cumulative_row(letter)
    assert isinstance(method, CovistPro if letter in "gh" else CovistFixed)


def test_settings_change_the_configuration():
    method = create_method("covist-pro:content=off,position_span=rule,gain_range=0.8/1.2,regions=4,reserve=0")
    expected = CovistConfig(content=False, position_span="rule", gain_range=(0.8, 1.2), regions=4, reserve=0)
    assert method.config == expected
    assert isinstance(method, CovistPro)


def test_a_row_can_be_changed_too():
    assert create_method("covist-row-a:attention=off").config == CovistConfig.cumulative_row("a").replace(
        attention=False
    )


def test_settings_of_other_methods_are_their_options():
    assert create_method("random:positions=keep,seed=4").seed == 4
    assert create_method("random:positions=keep").positions == "keep"
    assert create_method("covist-fixed:positions=reindex,content=off").positions == "reindex"


def test_a_selection_takes_covists_composition_and_attention():
    assert create_method("divprune+csc+sca").name == "divprune+csc+sca"
    assert create_method("divprune+sca").positions == "keep"
    assert create_method("divprune+csc+sca:positions=reindex").positions == "reindex"


def test_settings_may_be_keywords_too():
    assert create_method("vispruner", important=0.75).important == 0.75
    combined = create_method("divprune+csc+sca:content=off", weight_limit=64)
    assert combined._covist.config == CovistConfig(content=False, weight_limit=64)
    with pytest.raises(ValueError, match="both set important"):
        create_method("vispruner:important=0.5", important=0.75)


def test_a_combination_takes_the_settings_of_both_sides():
    method = create_method("vispruner+csc:important=0.75,content=off")
    assert method._base.important == 0.75 and method._covist.config == CovistConfig(content=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "unknown method 'nonsense'; choose one of vanilla, .*covist-fixed.*covist-row-a to covist-row-h"),
        ("nonsense+csc", "unknown method 'nonsense'; choose one of"),
        ("DivPrun", r"unknown method 'DivPrun'; did you mean divprune\?"),
        ("covist-row-z", r"unknown method 'covist-row-z'; did you mean covist-row-h\?"),
        ("vispruner:importent=0.3", r"vispruner has no option 'importent'; did you mean important\?"),
        ("divprune+magic", "a method can be combined with csc and sca, not 'magic'"),
        (
            "covist-fixed:colour=red",
            "has no option 'colour'; it takes config, tracker, positions, epsilon",
        ),
        ("covist-fixed:first_stage_gain=1", "does not read 'first_stage_gain', a constant of CoViST's progressive"),
        ("divprune+sca:reserve=0.5", r"divprune\+sca does not read 'reserve', a constant of CoViST's selection"),
        ("divprune+csc:gain_range=1/1", r"divprune\+csc does not read 'gain_range', a constant of CoViST's attention"),
        ("fastv+csc:instruction_weight=0", "does not read 'instruction_weight', a constant of CoViST's evidence"),
        ("divprune:weight_limit=9", "divprune has no option 'weight_limit'; it takes positions"),
        ("vispruner+sca:colour=red", r"vispruner\+sca has no option 'colour'; it takes important, positions, epsilon"),
        ("covist-fixed:content", "'content' is not of the form field=value"),
        ("covist-fixed:content=7", "CovistConfig.content must be one of True, False"),
        ("random:colour=red", "random has no option 'colour'; it takes seed, positions"),
        ("vispruner:important=most", "important='most': choose a share between 0 and 1"),
    ],
)
def test_bad_names_say_what_is_wrong(name, message):
    with pytest.raises(ValueError, match=message):
        create_method(name)
