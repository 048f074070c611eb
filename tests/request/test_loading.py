"""A checkpoint folder of any family, saved with `save_pretrained`, loads as it was."""

import pytest
import torch
import transformers
from support.case import SIZES
from support.cases import FAMILIES
from support.families import smooth_image

from covist.api.setup import Setup
from covist.errors import CovistError
from covist.request.answer import ask
from covist.request.checkpoints import served_class
from covist.request.inputs import prepare
from covist.request.loading import load_model

QUESTION = "what is this ?"


@pytest.fixture(params=FAMILIES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture
def folder(case, tmp_path):
    case.model.save_pretrained(tmp_path)
    case.chatting_processor().save_pretrained(tmp_path)
    return tmp_path


@torch.no_grad()
def test_a_saved_folder_gives_the_same_inputs_and_logits(case, folder):
    loaded = load_model(str(folder), device="cpu")
    request = prepare(loaded, [smooth_image(*SIZES[0])], QUESTION)
    expected = case.ask("{image}" + QUESTION)
    inputs = request.inputs(loaded.model)
    assert inputs.keys() == expected.keys()
    assert all(values.equal(expected[name]) for name, values in inputs.items())
    assert torch.equal(loaded.model(**inputs).logits, case.model(**expected).logits)


@pytest.mark.filterwarnings("ignore:no clip= given")
def test_a_saved_folder_answers_under_compression(case, folder):
    loaded = load_model(str(folder), device="cpu")
    request = prepare(loaded, [smooth_image(*SIZES[0])], QUESTION)
    answer = ask(loaded, request, Setup("covist-pro", 8), max_new_tokens=2)
    assert answer.mean_tokens == pytest.approx(8, abs=0.5) and answer.report.images[0].tokens > 8


def test_a_folder_without_architectures_is_read_by_its_model_type(case, folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    config.architectures = None
    config.save_pretrained(folder)
    assert type(load_model(str(folder), device="cpu").model) is type(case.model)


def test_a_refused_model_is_refused_before_its_weights_are_read(tmp_path):
    transformers.MllamaConfig(architectures=["MllamaForConditionalGeneration"]).save_pretrained(tmp_path)
    with pytest.raises(CovistError, match=r"\(mllama\) is not supported: reads images by cross-attention"):
        load_model(str(tmp_path))


def test_a_tower_that_no_file_reads_is_read_by_its_structure(tmp_path):
    config = transformers.LlavaConfig(vision_config=transformers.SiglipVisionConfig())
    config.architectures = ["LlavaForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    model_class, family = served_class(str(tmp_path))
    assert (model_class, family.name) == (transformers.LlavaForConditionalGeneration, "generic")
