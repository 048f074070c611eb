"""covist.json: what it says is what is done, and whatever is wrong with it is one line."""

import json
import pickle

import pytest

import covist
from covist import CovistConfig, CovistError, Setup
from covist.schedule import Calibration
from covist.tiny import Size, build_random

SMALL = Size(width=32, heads=2, vision_layers=2, text_layers=1, decoder_layers=4, decoder_mlp=64)


@pytest.fixture(scope="module")
def model():
    return build_random(seed=3, size=SMALL)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "covist.json"
    Setup("covist-pro", 24, 0.2, CovistConfig(weight_limit=64), {"made_by": "a test"}).save(path)
    return path


def test_a_file_is_read_as_it_was_written(file):
    read = Setup.load(file)
    assert read == Setup("covist-pro", 24, 0.2, CovistConfig(weight_limit=64))
    assert read.origin == {"made_by": "a test"}


@pytest.mark.parametrize("form", ["path", "text", "object"])
def test_compress_takes_a_setup_in_every_form(model, file, form):
    config = {"path": file, "text": str(file), "object": Setup.load(file)}[form]
    with covist.compress(*model[:2], clip=model[2], config=config) as handle:
        method = handle.settings.method
        assert (method.name, str(handle.setup.budget)) == ("covist-pro", "24")
        assert method.tracker.frozen == 0.2 and method.config.weight_limit == 64


def test_explicit_arguments_override_the_file(model, file):
    given = {"budget": 8, "strategy": "fixed", "concentration": 0.1}
    with covist.compress(*model[:2], clip=model[2], config=file, **given) as handle:
        method = handle.settings.method
        assert (method.name, str(handle.setup.budget), method.tracker.frozen) == ("covist-fixed", "8", 0.1)
        assert method.config.weight_limit == 64


def test_another_method_takes_from_the_file_what_it_reads(model, file):
    with covist.compress(*model[:2], clip=model[2], config=file, method="divprune") as handle:
        assert (handle.settings.method.name, str(handle.setup.budget)) == ("divprune", "24")


def test_a_file_of_constants_alone_still_is_one(model, tmp_path):
    CovistConfig(weight_limit=32).save(tmp_path / "constants.json")
    with covist.compress(*model[:2], clip=model[2], config=tmp_path / "constants.json") as handle:
        assert handle.settings.method.config.weight_limit == 32
        assert (handle.settings.method.name, str(handle.setup.budget)) == ("covist-fixed", "64")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        pytest.param("[" * 100_000, "is not JSON", id="deep"),
        ("[1]", "expected an object with one value per setting"),
        ('{"covist_settings": 2}', "covist_settings is 2, but this covist reads version 1"),
        ('{"covist_settings": 1, "budgte": 3}', "unknown setting budgte"),
        ('{"covist_settings": 1, "budget": "many"}', "budget must be a positive number"),
        ('{"covist_settings": 1, "budget": true}', "budget must be a positive number"),
        ('{"covist_settings": 1, "method": "nonsense"}', "unknown method 'nonsense'"),
        ('{"covist_settings": 1, "method": 3}', "method must be a method's name, got 3"),
        ('{"covist_settings": 1, "concentration": 7}', "concentration must be a number in"),
        ('{"covist_settings": 1, "constants": {"weight_limit": -1}}', "weight_limit must be"),
        ('{"covist_settings": 1, "budget": "auto:2"}', "LEVEL in"),
        ('{"covist_settings": 1, "min_coverage": 2}', "min_coverage must be a share"),
        ('{"covist_settings": 1, "budget": "total:0"}', "budget must be"),
        ('{"covist_settings": 1, "max_visual_tokens": 0}', "max_visual_tokens must be a positive number of tokens"),
        ('{"covist_settings": 1, "constants": {"nonsense": 1}}', "unknown field nonsense"),
        ('{"covist_settings": 1, "calibration": [1]}', "calibration must be an object with `kept` only"),
        ('{"covist_settings": 1, "calibration": {"kept": [[0.5]]}}', "calibration: the shares in kept must begin"),
        ('{"covist_settings": 1, "origin": 3}', "origin must be an object, got 3"),
        ('{"nonsense": 1}', "unknown field nonsense"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name(tmp_path, content, complaint):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(CovistError, match=f"bad.json.*{complaint}") as caught:
        Setup.load(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)


def test_an_invalid_config_argument_is_refused(model, tmp_path):
    with pytest.raises(CovistError, match="nowhere.json cannot be read"):
        covist.compress(*model[:2], config=tmp_path / "nowhere.json")
    with pytest.raises(CovistError, match="config must be a CovistConfig, a Setup or the path of a file, got int"):
        covist.compress(*model[:2], config=3)


def test_a_calibration_goes_to_the_methods_that_take_it(model, tmp_path):
    setup = Setup("fitprune", 288, calibration=Calibration([[1, 0.5, 0.25, 0.25]]))
    setup.save(tmp_path / "covist.json")
    assert Setup.load(tmp_path / "covist.json") == setup
    for name in ("fitprune", "fitprune+csc", "fastv", None):
        with covist.compress(*model[:2], config=tmp_path / "covist.json", method=name) as handle:
            counts = handle.settings.method.schedule(4, 288, 576).tokens_per_layer
        assert (counts == (576, 288, 144, 144)) is (name != "fastv")
    with pytest.raises(CovistError, match="calibration must be a Calibration, got list"):
        Setup(calibration=[1])


def test_a_file_says_its_version(file):
    assert json.loads(file.read_text())["covist_settings"] == 1


def test_a_budget_that_follows_the_image_and_a_least_coverage_are_kept(tmp_path):
    setup = Setup("covist-max", "auto:0.9:16:192", min_coverage=0.8)
    setup.save(tmp_path / "covist.json")
    assert Setup.load(tmp_path / "covist.json") == setup


@pytest.mark.parametrize("budget", ["total:2048", "total:2048:64", "ages:256,128,64"])
def test_budgets_of_a_prompt_and_a_cap_are_kept(tmp_path, budget):
    setup = Setup("covist-max", budget, max_visual_tokens=4096)
    setup.save(tmp_path / "covist.json")
    assert Setup.load(tmp_path / "covist.json") == setup
    assert setup.resolved().max_visual_tokens == 4096


def test_a_setup_is_a_value():
    one, other = Setup("covist-pro", 64, origin={"made_by": "a test"}), Setup("covist-pro", "64")
    assert one == other and hash(one) == hash(other) and pickle.loads(pickle.dumps(one)) == other
    assert Setup("covist-pro", 0.1) == Setup("covist-pro", "10%") != one


def test_open_settings_are_filled_from_the_next_setup():
    file = Setup("covist-pro", 96, 0.2, CovistConfig(weight_limit=64), {"made_by": "a test"})
    assert Setup(budget=32).over(file) == Setup("covist-pro", 32, 0.2, CovistConfig(weight_limit=64))
    assert Setup().over(file) == file and Setup().over(file).origin == file.origin


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (Setup(), Setup("covist-fixed")),
        (Setup(budget="64", constants=CovistConfig()), Setup("covist-fixed", 64)),
        (Setup(" divprune+sca+csc", concentration=0.1), Setup("divprune+csc+sca")),
        (Setup("divprune", 32, 0.1, CovistConfig(weight_limit=64)), Setup("divprune", 32)),
        (Setup("covist-pro", 32, 0.1), Setup("covist-pro", 32, 0.1)),
        (Setup("vanilla", 576), Setup("vanilla", "none")),
        (Setup("covist-pro", "none", 0.1), Setup("vanilla", "none")),
        (Setup("fastv", calibration=Calibration(((1, 0.5),))), Setup("fastv")),
    ],
)
def test_a_resolved_setup_holds_what_takes_effect_and_nothing_else(written, meant):
    assert written.resolved() == meant and meant.resolved() == meant


def test_a_reference_is_measured_once_and_only_for_a_method_that_has_one():
    measured = iter([0.3])
    frozen = Setup("covist-pro").resolved(lambda: next(measured))
    assert frozen.concentration == 0.3
    assert frozen.resolved(lambda: next(measured)) == frozen
    assert Setup("divprune").resolved(lambda: next(measured)).concentration is None
    assert Setup("vanilla").resolved(lambda: next(measured)).concentration is None


def test_a_file_of_an_earlier_version_with_a_fraction_is_read(tmp_path):
    (tmp_path / "covist.json").write_text('{"covist_settings": 1, "method": "covist-fixed", "budget": 0.11}')
    setup = Setup.load(tmp_path / "covist.json")
    assert setup == Setup("covist-fixed", "11%") and setup.to_dict()["budget"] == "11%"


def test_a_budget_of_none_is_for_single_calls_only(model):
    with pytest.raises(CovistError, match="budget must be a positive number of tokens"):
        covist.compress(*model[:2], clip=model[2], budget="none")
