"""`covist methods`, `models` and `doctor`: what there is, and whether it works."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import groupby

import pytest

from covist import MethodInfo, available_methods, environment
from covist.families.refusals import image_text_models
from covist.tiny import NEXT_WEIGHTS


def test_methods_lists_every_registered_method(covist):
    listed = covist("methods", "--json").json["methods"]
    assert [entry["name"] for entry in listed] == list(available_methods())
    for entry in listed:
        described = {field.name for field in fields(MethodInfo)}
        assert {"criterion", "needs", "licence"} < described
        assert set(entry) == {"name", "where", "positions", "settings", *described}
        assert entry["paper"] and entry["acts"] and entry["settings"]


@pytest.mark.parametrize("columns", [80, 120])
def test_methods_prints_one_line_each_that_fits(covist, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = covist("methods").stdout.splitlines()
    assert max(map(len, lines)) <= columns
    for name in available_methods():
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    assert len(lines) <= len(available_methods()) + 15


def test_methods_are_grouped_by_where_they_act_and_what_they_go_by(covist):
    firsts = [line.split()[0] for line in covist("methods").stdout.splitlines() if line.strip()]
    order = [name for name in firsts if name in available_methods()]
    by_name = {entry["name"]: entry for entry in covist("methods", "--json").json["methods"]}
    assert set(order) == set(by_name)
    groups = [(by_name[name]["where"], by_name[name]["criterion"]) for name in order]
    assert len(list(groupby(groups))) == len(set(groups)), "a group is torn apart"
    assert [where for where, _ in groupby(where for where, _ in groups)] == ["before", "inside", "both"]
    assert firsts.index("divprune") < firsts.index("inside") < firsts.index("fastv")


def test_methods_are_filtered(covist):
    def names(*filters):
        return [entry["name"] for entry in covist("methods", *filters, "--json").json["methods"]]

    everything = covist("methods", "--json").json["methods"]
    parts = {where: names("--acts", where) for where in ("before", "inside", "both")}
    assert sorted(sum(parts.values(), [])) == [entry["name"] for entry in everything]
    assert "fastv" in parts["inside"] and "divprune" in parts["before"] and "covist-pro" in parts["both"]
    assert {"random", "uniform"} <= set(names("--needs", "none")) and "divprune" not in names("--needs", "none")
    both = names("--needs", "class-attention,clip-text")
    assert set(both) == set(names("--needs", "class-attention")) & set(names("--needs", "clip-text")) != set()
    assert all("MIT" in entry["licence"] for entry in everything if entry["name"] in names("--licence", "mit"))
    assert names("--acts", "inside", "--licence", "MIT", "--needs", "decoder-attention").count("pyramiddrop") == 1
    assert sorted(names("--for", "image") + names("--for", "video")) == [entry["name"] for entry in everything]
    assert "vidcom2" in names("--for", "video") and "divprune" not in names("--for", "video")
    shown = covist("methods", "--acts", "inside").stdout
    assert "fastv" in shown and "divprune" not in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--needs", "magic"), "class-attention"),
        (("--needs", ""), "--needs is empty"),
        (("--licence", "magic"), "Apache-2.0"),
        (("vispruner", "--acts", "inside"), "either a name or filters"),
    ],
)
def test_impossible_filters_are_refused_in_one_line(covist, arguments, says):
    ran = covist("methods", *arguments)
    assert ran.code == 2 and says in ran.stderr and ran.stderr.count("\n") == 1


def test_methods_says_of_each_how_it_was_checked(covist):
    lines = {
        line.split()[0]: line.split()[3] for line in covist("methods").stdout.splitlines() if len(line.split()) > 3
    }
    assert [lines[name] for name in ("divprune", "covist-fixed", "random")] == ["golden", "reference", "-"]


def test_methods_with_a_name_says_everything(covist):
    text = covist("methods", "vispruner").stdout
    for part in (
        "class-attention, encoder-features",
        "criterion",
        "Beyond Text-Visual Attention",
        "before the decoder",
        "reindex",
        "Apache-2.0",
        "important=0.5",
        "share",
        "published",
        "ours",
        "checked",
        "golden: vispruner",
    ):
        assert part in text
    (entry,) = covist("methods", "vispruner", "--json").json["methods"]
    assert [setting["name"] for setting in entry["settings"]] == ["important", "positions"]
    assert covist("methods", "magic").code == 2


def test_methods_knows_combinations(covist):
    (entry,) = covist("methods", "divprune+csc", "--json").json["methods"]
    names = [setting["name"] for setting in entry["settings"]]
    assert entry["name"] == "divprune+csc" and "composition" in entry["acts"]
    assert "weight_limit" in names and "gain_range" not in names


def test_methods_says_what_a_row_of_the_cumulative_study_switches(covist):
    text = " ".join(covist("methods", "covist-row-a").stdout.split())
    assert "row a of the paper's cumulative study: covist-fixed with reserve=0, contributions=off" in text
    assert "--method covist-row-a:" in text
    rows = {letter: covist("methods", f"covist-row-{letter}", "--json").json["methods"][0] for letter in "bfgh"}
    assert rows["b"]["name"] == "covist-row-b" and "contributions" not in rows["b"]["row"]
    assert rows["f"]["row"].endswith("covist-fixed as published") and rows["h"]["row"].endswith(
        "covist-pro as published"
    )
    assert rows["g"]["row"].endswith("covist-pro with inheritance=off") and rows["g"]["where"] == "both"
    values = {setting["name"]: setting["default"] for setting in rows["b"]["settings"]}
    assert values["contributions"] is True and values["content"] is False


def test_models_lists_every_type_with_what_is_read_of_it(covist):
    listed = {entry["model_type"]: entry for entry in covist("models", "--json").json["models"]}
    assert list(listed) == list(image_text_models())
    assert listed["llava"]["families"] == ["llava-1.5", "pixtral"] and listed["llava"]["runs"] == "file"
    assert listed["llava"]["presets"] == ["llava-1.5-7b", "llava-1.5-13b", "pixtral-12b"]
    assert listed["mllama"]["runs"] is None and "cross-attention" in listed["mllama"]["refusal"]


@pytest.mark.parametrize("columns", [80, 120])
def test_models_prints_one_line_each_that_fits(covist, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = covist("models").stdout.splitlines()
    assert max(map(len, lines)) <= columns
    for name in image_text_models():
        assert sum(line.split()[:1] == [name] for line in lines) == 1, name
    assert len(lines) <= len(image_text_models()) + 44
    assert "qwen3.5-9b" in "".join(lines)


def test_models_with_a_type_says_everything(covist):
    shown = covist("models", "qwen3_vl").stdout
    for text in ("Qwen3VLForConditionalGeneration", "by qwen3-vl", "pay to each other", "36 full", "qwen3-vl-30b-a3b"):
        assert text in shown
    assert "no: reads images by cross-attention" in covist("models", "mllama").stdout
    assert [entry["model_type"] for entry in covist("models", "llava-next", "--json").json["models"]] == ["llava_next"]
    ran = covist("models", "magic")
    assert ran.code == 2 and "no image-text model of type 'magic'" in ran.stderr and ran.stderr.count("\n") == 1


def test_doctor_finds_what_is_installed(covist, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    ran = covist("doctor", "--json")
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert checks["torch"]["status"] == "ok" and checks["torch"]["found"].startswith("2.")
    assert ran.code == (0 if ran.json["healthy"] else 1)
    assert checks["OMP_WAIT_POLICY"]["found"] == "active" and "passive" in checks["OMP_WAIT_POLICY"]["advice"]
    assert "torch" in covist("doctor").stdout


def test_doctor_looks_at_the_embedded_models(covist, monkeypatch, tmp_path):
    def found():
        return {check["name"]: check for check in covist("doctor", "--json").json["checks"] if "model" in check["name"]}

    assert {name: check["status"] for name, check in found().items()} == {
        "embedded model tiny": "ok",
        "embedded model tiny-next": "ok",
        "embedded model tiny-video": "ok",
    }
    damaged = tmp_path / "model.safetensors"
    monkeypatch.setattr("covist.tiny.WEIGHTS", tmp_path)
    assert found()["embedded model tiny"]["found"] == "no weights"
    damaged.write_bytes((NEXT_WEIGHTS / "model.safetensors").read_bytes()[:-100])
    monkeypatch.setattr("covist.tiny.NEXT_WEIGHTS", tmp_path)
    second = found()["embedded model tiny-next"]
    assert second["status"] == "missing" and second["found"].startswith("damaged weights (")
    assert covist("doctor").code == 1


def test_doctor_names_a_release_outside_the_declared_range(covist, monkeypatch):
    monkeypatch.setattr(environment, "requires", lambda name: ["torch>=2", "transformers>=1000"])
    ran = covist("doctor", "--json")
    checks = {check["name"]: check for check in ran.json["checks"]}
    assert ran.code == 1 and checks["torch"]["status"] == "ok"
    assert checks["transformers"]["status"] == "missing"
    assert "but covist needs >=1000" in checks["transformers"]["found"]
    assert checks["transformers"]["advice"] == "pip install 'transformers>=1000'"


@pytest.mark.parametrize(
    ("config", "status", "words"),
    [
        ({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}, "ok", "--clip"),
        ({"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "ok", ""),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, "ok", ""),
        ({"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"]}, "missing", "cross-attention"),
    ],
)
def test_doctor_judges_a_model_by_its_configuration_alone(covist, tmp_path, config, status, words):
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = covist("doctor", "--model", tmp_path, "--json")
    check = ran.json["checks"][-1]
    assert (check["name"], check["status"]) == (f"model {tmp_path}", status) and words in check["advice"]
    assert ran.code == (0 if status == "ok" else 1)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (None, "has no config.json"),
        ("{", "is not JSON"),
        ("[]", "has no model_type"),
        ('{"model_type": "unheard"}', "model type 'unheard'"),
        ('{"model_type": "llama"}', "is text-only (llama)"),
    ],
)
def test_doctor_says_what_is_wrong_with_a_folder(covist, tmp_path, written, says):
    if written is not None:
        (tmp_path / "config.json").write_text(written)
    ran = covist("doctor", "--model", tmp_path, "--json")
    assert ran.code == 1 and says in ran.json["checks"][-1]["advice"] and "model" not in ran.json


def test_doctor_counts_the_tokens_of_a_checkpoint_and_what_budgets_save(covist, tmp_path):
    """Qwen3.5, by its configuration alone: one token per 32 x 32 pixels; a cache in 8 of 32 layers."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5"}')
    found = covist("doctor", "--model", tmp_path, "--json").json["model"]
    assert (found["family"], found["evidence"], found["layers"]) == ("generic", "incoming", {"linear": 24, "full": 8})
    images = {image["image"]: image for image in found["images"]}
    assert images["1024 x 768"]["tokens"] == 32 * 24
    flops, cache = images["1024 x 768"]["left"]["64"]
    assert flops == pytest.approx(cache, abs=0.01) and cache == pytest.approx((64 + 64) / (768 + 64))
    shown = covist("doctor", "--model", tmp_path).stdout
    for text in ("Qwen3_5ForConditionalGeneration", "24 linear, 8 full", "768", "by the configuration", "15.4 %"):
        assert text in shown


def test_doctor_asks_the_processor_of_a_checkpoint_that_has_one(covist):
    found = covist("doctor", "--model", "tiny", "--json").json["model"]
    assert "processor" in found["counted_by"] and {image["tokens"] for image in found["images"]} == {576}


def test_doctor_names_a_model_that_is_not_there(covist):
    ran = covist("doctor", "--model", "nowhere")
    assert ran.code == 1 and "cannot be compressed" in ran.stdout and "something is missing" in ran.stdout
    assert covist("doctor", "--model", "tiny", "--json").json["checks"][-1]["advice"] == ""
