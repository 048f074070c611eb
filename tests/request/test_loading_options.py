"""How a model is loaded: precision, attention, places, quantisation, adapters and trust, on real folders."""

import importlib.util
import json
import shutil

import pytest
import torch
from any_model.test_remote_code import CODE, CONFIGURATION
from support.cases import FAMILIES
from support.checkpoints import saved_with
from support.families import smooth_image
from support.matrix.qwen2_5_vl import qwen as wide_qwen
from transformers import AutoConfig, AutoModelForImageTextToText, dynamic_module_utils

import covist
from covist.api.setup import Setup
from covist.errors import CovistError
from covist.loading import Loading
from covist.request import weights
from covist.request.answer import ask
from covist.request.identity import identity
from covist.request.inputs import prepare
from covist.request.loading import load_model

QUESTION = "what is this ?"
SPREAD = '{"model.visual": "disk", "model.language_model": "cpu", "lm_head": "disk"}'


@pytest.fixture(scope="module")
def qwen():
    return next(case for case in FAMILIES if case.family == "qwen2.5-vl")


@pytest.fixture(scope="module")
def folder(qwen, tmp_path_factory):
    return saved_with(qwen.model, qwen.chatting_processor(), tmp_path_factory.mktemp("qwen"))


def answer(loaded, method="covist-pro", budget=6):
    request = prepare(loaded, [smooth_image(84, 112)], QUESTION)
    return ask(loaded, request, Setup(method, budget, concentration=0.05), max_new_tokens=4)


def logits(loaded):
    inputs = prepare(loaded, [smooth_image(84, 112)], QUESTION).inputs(loaded.model)
    with torch.no_grad(), covist.compress(loaded.model, loaded.processor, budget=6, concentration=0.05) as handle:
        out = loaded.model(**inputs).logits
    assert handle.report.mean_tokens == 6
    return out.float()


@pytest.fixture
def adapter(qwen, folder, tmp_path):
    """A LoRA that changes the projections of the decoder, saved as PEFT saves it."""
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(
        AutoModelForImageTextToText.from_pretrained(folder),
        peft.LoraConfig(r=4, target_modules=r".*language_model.*\.(q_proj|v_proj)", init_lora_weights=False),
    )
    wrapped.save_pretrained(tmp_path / "adapter")
    return str(tmp_path / "adapter")


def test_load_model_is_public_and_its_result_can_be_taken_apart():
    loaded = covist.load_model("tiny", device="cpu")
    model, processor, clip = loaded
    assert isinstance(loaded, covist.LoadedModel) and model is loaded.model and clip is loaded.clip
    with covist.compress(model, processor, clip=clip):
        pass


@pytest.mark.parametrize("model", ["tiny", "folder"])
def test_precision_and_attention_are_those_asked_for(model, folder):
    loaded = load_model(folder if model == "folder" else model, dtype="bfloat16", attention="eager")
    assert (loaded.dtype, loaded.attention) == ("bfloat16", "eager")
    if loaded.clip is not None:
        assert loaded.clip[0].dtype == torch.bfloat16


def test_single_options_take_precedence_over_a_loading():
    how = Loading(dtype="float16", attention="eager", trust_remote_code=True)
    assert load_model("tiny", loading=how, dtype="float64").loading == Loading(
        dtype="float64", attention="eager", trust_remote_code=True
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "bf16"}, "dtype 'bf16' is unknown; choose one of auto, float32, bfloat16, float16, float64"),
        ({"dtype": 16}, "dtype must be a text, got 16"),
        ({"quantization": "int8"}, "choose one of bnb-8bit, bnb-4bit, torchao-int8"),
        ({"device_map": "somewhere"}, "neither auto, balanced, balanced_low_0, sequential nor JSON"),
        ({"device_map": "[1]"}, "neither auto"),
        ({"device_map": '{"": [1]}'}, "neither auto"),
        ({"device_map": "auto", "device": "cpu"}, "give either device or device_map, not both"),
        ({"attention": "  "}, "attention must be a text, got '  '"),
        ({"trust_remote_code": "yes"}, "trust_remote_code must be True or False, got 'yes'"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(options, reason):
    with pytest.raises(CovistError, match=reason.replace("(", r"\(")) as refused:
        Loading(**options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"quantization": "bnb-4bit"}, "bitsandbytes"),
        ({"quantization": "torchao-int8"}, "torchao"),
        ({"adapter": "somewhere"}, "peft"),
        ({"device_map": "auto"}, "accelerate"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch, options, missing):
    monkeypatch.setattr(weights, "find_spec", lambda name: None if name == missing else importlib.util.find_spec("os"))
    (name,) = options
    with pytest.raises(CovistError) as refused:
        load_model("tiny", **options)
    assert str(refused.value) == (f"{name.replace('_', '-')} {options[name]} needs {missing}: pip install {missing}")


def test_an_unknown_attention_backend_is_one_line(folder):
    with pytest.raises(CovistError, match=r'cannot load model .*attn_implementation="foo"') as refused:
        load_model(folder, attention="foo")
    assert "\n" not in str(refused.value)


def test_a_revision_is_for_the_hub(folder):
    for name in ("tiny", folder):
        with pytest.raises(CovistError, match="revision 'v1' is for models of the hub"):
            load_model(name, revision="v1")


# -- places ------------------------------------------------------------------------------------------------------------


def test_a_model_spread_over_memory_and_disk_is_compressed_as_in_one_place(folder):
    pytest.importorskip("accelerate")
    whole, spread = load_model(folder, device="cpu"), load_model(folder, device_map=SPREAD)
    assert any(parameter.is_meta for parameter in spread.model.parameters())
    assert torch.equal(logits(spread), logits(whole))
    assert answer(spread).text == answer(whole).text
    assert identity(spread) == identity(whole)


def test_a_device_map_of_the_embedded_model_keeps_its_clip():
    pytest.importorskip("accelerate")
    places = '{"model.vision_tower": "cpu", "model.multi_modal_projector": "disk", "model.language_model": "disk", '
    places += '"lm_head": "cpu"}'
    spread = load_model("tiny", device_map=places)
    image, question, right = covist.tiny.demo()
    said = ask(spread, prepare(spread, [image], question), Setup("covist-fixed", 64, concentration=0.172417), 8)
    assert said.text == right


def test_a_map_to_a_device_that_is_not_there_is_one_line(folder):
    pytest.importorskip("accelerate")
    with pytest.raises(CovistError, match="cannot load model") as refused:
        load_model(folder, device_map='{"": "toaster"}')
    assert "\n" not in str(refused.value)


# -- quantisation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["torchao-int8", "bnb-8bit"])  # these widths are too small for 4 bits
def test_a_quantised_model_is_compressed(folder, way):
    pytest.importorskip({"torchao-int8": "torchao", "bnb-8bit": "bitsandbytes"}[way])
    pytest.importorskip("accelerate")
    loaded, plain = load_model(folder, quantization=way, device="cpu"), load_model(folder, device="cpu")
    assert answer(loaded).mean_tokens == answer(plain).mean_tokens
    assert identity(loaded) == identity(load_model(folder, quantization=way, device="cpu")) != identity(plain)
    assert torch.nn.functional.cosine_similarity(logits(loaded), logits(plain), dim=-1).mean() > 0.9


def test_four_bits_run_where_rows_are_long_enough(qwen, tmp_path):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    wide = {"hidden_size": 128, "intermediate_size": 256}
    name = saved_with(wide_qwen(vision=wide, rope_parameters=rope, **wide), qwen.chatting_processor(), tmp_path)
    assert answer(load_model(name, quantization="bnb-4bit", device="cpu")).mean_tokens == pytest.approx(6, abs=0.5)


def test_a_quantised_checkpoint_is_not_quantised_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "find_spec", lambda name: True)
    monkeypatch.setattr(weights, "_quantization", lambda name: None)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    with pytest.raises(CovistError, match="is quantised already; omit quantization"):
        load_model(str(tmp_path), quantization="bnb-4bit")
    with pytest.raises(CovistError, match="cannot load model") as refused:  # its package is not installed
        load_model(str(tmp_path))
    assert "\n" not in str(refused.value)


# -- adapters ----------------------------------------------------------------------------------------------------------


def test_an_adapter_is_part_of_the_model(folder, adapter):
    peft = pytest.importorskip("peft")
    loaded = load_model(folder, adapter=adapter, device="cpu")
    wrapped = peft.PeftModel.from_pretrained(load_model(folder, device="cpu").model, adapter)
    plain = load_model(folder, device="cpu")
    inputs = prepare(plain, [smooth_image(84, 112)], QUESTION).inputs(plain.model)
    with torch.no_grad():
        assert torch.equal(loaded.model(**inputs).logits, wrapped(**inputs).logits)
    assert not torch.allclose(logits(loaded), logits(plain))
    assert identity(loaded)["model"] != identity(plain)["model"]


def test_an_adapter_of_offloaded_layers_is_refused_and_beside_them_it_works(folder, adapter):
    pytest.importorskip("accelerate")
    with pytest.raises(CovistError, match="changes layers that the device map offloads; keep these in memory"):
        load_model(folder, adapter=adapter, device_map=SPREAD.replace("cpu", "disk"))
    assert torch.equal(
        logits(load_model(folder, adapter=adapter, device_map=SPREAD)), logits(load_model(folder, adapter=adapter))
    )


def test_an_adapter_of_another_model_is_refused(adapter):
    with pytest.raises(CovistError, match=r"adapter .*does not fit|cannot load adapter") as refused:
        load_model("tiny", adapter=adapter)
    assert "\n" not in str(refused.value)


def test_an_adapter_that_is_not_there_is_one_line(folder, tmp_path):
    pytest.importorskip("peft")
    for name in (str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(CovistError, match="adapter") as refused:
            load_model(folder, adapter=name)
        assert "\n" not in str(refused.value)


# -- trust -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def owl(tmp_path, monkeypatch):
    """A checkpoint whose code lies beside its weights."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "owl"
    shutil.copytree(CODE, folder)
    (folder / "config.json").write_text(json.dumps(CONFIGURATION))
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    AutoModelForImageTextToText.from_config(config, trust_remote_code=True).save_pretrained(folder)
    return folder


def test_code_of_a_checkpoint_runs_only_if_it_is_trusted(owl, qwen, tmp_path):
    (owl / "configuration_owl.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n" + (owl / "configuration_owl.py").read_text()
    )
    with pytest.raises(CovistError, match="comes with Python code of its own; if you trust its source"):
        load_model(str(owl))
    assert not (tmp_path / "ran").exists()
    qwen.chatting_processor().tokenizer.save_pretrained(owl)
    loaded = load_model(str(owl), trust_remote_code=True)
    assert (tmp_path / "ran").exists() and type(loaded.model).__name__ == "OwlForConditionalGeneration"


def test_a_type_that_transformers_has_does_not_run_code_unless_it_is_trusted(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"AutoConfig": "evil.Config", "AutoModelForImageTextToText": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "auto_map": own}))
    (tmp_path / "evil.py").write_text("raise SystemExit('this code ran')")
    assert load_model(str(tmp_path)).model.config.model_type == "qwen2_5_vl"


# -- files -------------------------------------------------------------------------------------------------------------


def test_loading_is_part_of_covist_json(tmp_path):
    how = Loading(dtype="bfloat16", device_map='{"": "cpu"}', adapter="mine")
    Setup("covist-pro", 32, loading=how).save(tmp_path / "covist.json")
    assert json.loads((tmp_path / "covist.json").read_text())["loading"] == {
        "dtype": "bfloat16",
        "device_map": {"": "cpu"},
        "adapter": "mine",
    }
    assert Setup.load(tmp_path / "covist.json").loading == how


@pytest.mark.parametrize(
    ("loading", "reason"),
    [
        ({"trust_remote_code": True}, "trust_remote_code is not read from a file"),
        ({"trust_remote_code": False}, "trust_remote_code is not read from a file"),
        ({"precision": "half"}, "loading: unknown setting precision"),
        ({"dtype": 3}, "dtype must be a text"),
        ("bfloat16", "loading must be an object"),
        ({"device_map": {"": None}}, "device_map"),
    ],
)
def test_what_a_file_may_not_say_is_refused(tmp_path, loading, reason):
    path = tmp_path / "covist.json"
    path.write_text(json.dumps({"covist_settings": 1, "loading": loading}))
    with pytest.raises(CovistError, match=reason):
        Setup.load(path)


def test_trust_is_never_taken_from_what_lies_below():
    assert not Loading(dtype="float16").over(Loading(trust_remote_code=True)).trust_remote_code


def test_a_place_that_is_given_replaces_the_file_s():
    assert Loading(device="cpu").over(Loading(device_map="auto")).device_map is None
    assert Loading(device_map="auto").over(Loading(device="cuda")).device is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x00" * 40),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"),
        lambda folder: (folder / "config.json").write_text('{"model_type": "qwen2_5_vl", "text_config": 7}'),
        lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
    ],
    ids=["weights", "no weights", "tokenizer", "bytes", "values", "a folder"],
)
def test_a_damaged_folder_is_one_line(folder, tmp_path, damage):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    damage(tmp_path)
    with pytest.raises(CovistError) as refused:
        load_model(str(tmp_path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "nul\0byte"])
def test_a_name_that_no_file_can_have_is_one_line(name):
    with pytest.raises(CovistError, match="unknown model"):
        load_model(name)
