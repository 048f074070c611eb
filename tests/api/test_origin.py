"""Settings that were tuned on another model: measurements of it are refused, the rest is used with a warning."""

import json
import warnings

import pytest
from support.cases import FAMILIES

import covist
from covist.api.origin import TUNED_ON, tuned_on
from covist.api.setup import Setup
from covist.errors import CovistError
from covist.schedule import Calibration


@pytest.fixture(scope="module")
def llava():
    return covist.tiny.load()


@pytest.fixture(scope="module")
def qwen():
    return next(case for case in FAMILIES if case.family == "qwen2.5-vl")


@pytest.fixture
def made_on_llava(llava, tmp_path):
    """A file as `covist tune` writes it, of the embedded LLaVA."""

    def write(concentration=0.172, method="covist-fixed", calibration=None):
        origin = {"made_by": "covist tune", **tuned_on("tiny", llava[0].config, concentration)}
        path = tmp_path / "covist.json"
        Setup(method, 16, concentration, origin=origin, calibration=calibration).save(path)
        return path

    return write


def test_a_file_says_on_what_it_was_tuned(made_on_llava):
    entry = json.loads(made_on_llava().read_text())["origin"][TUNED_ON]
    assert (entry["name"], entry["model_type"], entry["concentration"]) == ("tiny", "llava", 0.172)
    assert entry["text"]["layers"] == 8 and set(entry["vision"]) == {"layers", "hidden_size"}


def test_the_name_in_a_file_is_no_path_of_a_machine(llava):
    assert tuned_on("/home/me/models/mine", llava[0].config)[TUNED_ON]["name"] == "mine"
    assert tuned_on("llava-hf/llava-1.5-7b-hf", llava[0].config)[TUNED_ON]["name"] == "llava-hf/llava-1.5-7b-hf"


def test_the_same_model_uses_all_of_it_in_silence(llava, made_on_llava):
    model, processor, clip = llava
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with covist.compress(model, processor, clip=clip, config=made_on_llava()) as handle:
            assert handle.setup.concentration == 0.172


def test_a_concentration_reference_of_another_model_is_refused(qwen, made_on_llava):
    with pytest.raises(CovistError, match=r"tuned on tiny \(llava\): the concentration reference 0.172 is not") as said:
        covist.compress(qwen.model, config=made_on_llava())
    assert "qwen2_5_vl" in str(said.value) and "\n" not in str(said.value)
    assert covist.Compression.of(qwen.model) is None


def test_models_of_one_type_and_other_sizes_are_others(made_on_llava):
    model, processor, clip = covist.tiny.build_random(size=covist.tiny.Size(decoder_layers=4))
    with pytest.raises(CovistError, match="the concentration reference"):
        covist.compress(model, processor, clip=clip, config=made_on_llava())


def test_a_reference_of_one_s_own_is_used_with_a_warning(qwen, made_on_llava):
    with pytest.warns(UserWarning, match=r"tuned on tiny \(llava\).*was not measured"):
        covist.compress(qwen.model, config=made_on_llava(), concentration=0.01).remove()


def test_a_method_that_reads_no_reference_only_warns(qwen, made_on_llava):
    with pytest.warns(UserWarning, match="tuned on tiny"):
        covist.compress(qwen.model, config=made_on_llava(), method="divprune").remove()


def test_a_budget_alone_only_warns(qwen, made_on_llava):
    with pytest.warns(UserWarning, match="tuned on tiny"):
        covist.compress(qwen.model, config=made_on_llava(None), concentration=0.01).remove()


def test_a_calibration_of_another_model_is_refused(qwen, made_on_llava):
    path = made_on_llava(None, "fitprune", Calibration(((1.0, 0.5, 0.25, 0.25),)))
    with pytest.raises(CovistError, match=r"calibrated on tiny \(llava\)"):
        covist.compress(qwen.model, config=path)


@pytest.mark.parametrize("origin", [{}, {"made_by": "me"}, {"model": "Qwen2_5_VLForConditionalGeneration-01234567"}])
def test_an_old_file_that_may_be_of_this_model_says_nothing(qwen, origin):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        covist.compress(qwen.model, config=Setup("covist-max", 8, 0.1, origin=origin)).remove()


def test_an_old_file_of_another_class_warns(qwen, monkeypatch):
    monkeypatch.setattr(qwen.model.config, "architectures", [type(qwen.model).__name__])  # as a checkpoint says it
    old = Setup("covist-fixed", 8, 0.1, origin={"model": "LlavaForConditionalGeneration-01234567"})
    with pytest.warns(UserWarning, match="tuned on LlavaForConditionalGeneration"):
        covist.compress(qwen.model, config=old).remove()


@pytest.mark.parametrize("entry", [7, "llava", [], {"name": 3}, {"model_type": ["x"]}, {"text": None}])
@pytest.mark.filterwarnings("ignore:these settings")
def test_a_strange_entry_is_no_crash(qwen, entry):
    covist.compress(qwen.model, config=Setup("covist-max", 8, 0.1, origin={TUNED_ON: entry})).remove()
