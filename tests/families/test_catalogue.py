"""What is said about every image-text model of transformers, without loading one."""

import inspect
from pathlib import Path

import pytest
from support.zoo import ZOO
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from covist.errors import CovistError
from covist.families import catalogue
from covist.families.catalogue import grid_source, model_type_named, model_types, readable_layers
from covist.families.refusals import image_text_models
from covist.families.registry import presets


@pytest.fixture(scope="module")
def listed():
    return {entry.model_type: entry for entry in model_types()}


def test_every_type_runs_or_is_refused_and_most_run(listed):
    assert list(listed) == list(image_text_models())
    for entry in listed.values():
        assert (entry.runs is None) == (entry.refusal is not None), entry
        assert bool(entry.families) == (entry.runs == "file"), entry
    assert sum(entry.runs is not None for entry in listed.values()) >= 0.75 * len(listed)


def test_every_running_type_lists_its_evidence_and_its_layers(listed):
    for entry in listed.values():
        if entry.runs is not None:
            assert entry.evidence in catalogue.EVIDENCE and entry.kinds and sum(dict(entry.layers).values()) > 1, entry


@pytest.mark.parametrize(
    ("model_type", "runs", "evidence", "layers", "video"),
    [
        ("qwen3_5", "generic", "incoming", {"linear": 24, "full": 8}, True),
        ("gemma3", "generic", "incoming", {"sliding": 29, "full": 5}, False),
        ("llama4", "generic", "incoming", {"chunked": 36, "full": 12}, False),
        ("kimi_k25", "generic", "incoming", {"latent": 61}, True),
        ("lfm2_vl", "generic", "incoming", {"conv": 10, "full": 6}, False),
        ("glm5_next", "generic", "incoming", {"linear": 34, "indexed": 11}, True),
        ("fast_vlm", "generic", "uniform", {"full": 28}, False),
        ("llava", "file", "class token", {"full": 32}, False),
        ("qwen3_vl", "file", "incoming", {"full": 36}, True),
    ],
)
def test_facts_of_some_types(listed, model_type, runs, evidence, layers, video):
    if model_type not in listed:
        pytest.skip("not in this release of transformers")
    entry = listed[model_type]
    assert (entry.runs, entry.evidence, dict(entry.layers), entry.video) == (runs, evidence, layers, video)


def test_videos_are_what_the_model_has_a_method_for(listed):
    """Told from the configuration, which is quick to read; the source of the model knows it better."""
    for entry in listed.values():
        if entry.runs == "generic":
            folder = Path(inspect.getfile(CONFIG_MAPPING[entry.model_type])).parent
            source = "".join(file.read_text(encoding="utf-8") for file in folder.glob("modeling_*.py"))
            assert not source or entry.video == ("def get_video_features" in source), entry.model_type


def test_tables_about_types_name_types_that_run(listed):
    named = {*catalogue.UNREAD, *catalogue.NOTES, *catalogue.VIDEOS, *catalogue.PRESETS} & set(image_text_models())
    assert all(listed[model_type].runs for model_type in named)


def test_evidence_is_what_tiny_models_of_every_type_show(listed):
    """`make test-families` checks the zoo; in one type it stands a tower of transformers in for one of timm."""
    blind = {entry.model_type for entry in ZOO.values() if entry.blind} | {"perception_lm"}
    assert {name for name, entry in listed.items() if entry.evidence == catalogue.UNIFORM} == blind


def test_types_whose_decoders_cannot_be_read_say_so(listed):
    decoders = [entry for entry in ZOO.values() if not entry.variant and entry.model_type != "gemma4"]  # has both kinds
    unread = {entry.model_type for entry in decoders if entry.unread}
    said = {name for name, entry in listed.items() if entry.runs and readable_layers(entry).startswith("no layer")}
    assert said == unread


def test_a_type_is_found_by_its_class_or_its_family():
    assert model_type_named("LlavaForConditionalGeneration").model_type == "llava"
    assert model_type_named("qwen3-vl").model_type == "qwen3_vl"
    assert model_type_named("mllama").refusal is not None
    with pytest.raises(CovistError, match="no image-text model of type 'lava'; did you mean llava"):
        model_type_named("lava")


def test_presets_are_listed_with_their_type(listed):
    assert {name for entry in listed.values() for name in entry.presets} == set(presets())


def test_details_say_where_the_grid_comes_from_and_what_can_be_read_inside(listed):
    assert grid_source(listed["qwen3_5"]).startswith("image_grid_thw, else a square")
    assert grid_source(listed["gemma3"]).startswith("the proportions of the image")
    assert grid_source(listed["llava"]) == "as its file describes"
    assert readable_layers(listed["qwen3_5"]) == "methods read 8 of 32 layers"
    assert readable_layers(listed["kimi_k25"]).startswith("no layer can be read")
    assert readable_layers(listed["llava"]) == "methods read all 32 layers"
