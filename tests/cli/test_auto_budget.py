"""`--budget auto` and `--min-coverage` on the command line."""

import pytest

QUESTION = ("--prompt", "where is it?", "--max-new-tokens", "1")


def asked(covist, model_folder, image, *options):
    return covist("run", "--model", model_folder, "--image", image, *QUESTION, *options)


def test_run_says_how_well_the_image_is_represented(covist, model_folder, image):
    report = asked(covist, model_folder, image, "--budget", "auto:0.9", "--json").json["results"][0]["report"]
    (shown,) = report["images"]
    own = shown["certificate"]
    assert own["kept"] == shown["budget"] == len(shown["stages"][0]["indices"])
    assert 16 <= own["kept"] <= 192 and (own["coverage"] >= 0.9 or own["kept"] == 192)
    assert f"kept {own['kept']} of 576 tokens; what they leave out carries" in own["words"]


def test_run_prints_the_certificate(covist, model_folder, image):
    ran = asked(covist, model_folder, image, "--budget", "48")
    assert "kept 48 of 576 tokens; what they leave out carries" in " ".join(ran.stdout.split())


def test_run_keeps_an_image_whole_that_would_lose_too_much(covist, model_folder, image):
    ran = asked(covist, model_folder, image, "--budget", "16", "--min-coverage", "0.999", "--json")
    (shown,) = ran.json["results"][0]["report"]["images"]
    assert shown["mean_tokens"] == 576 and shown["certificate"]["missed"] < 0.999
    assert ran.json["notes"] == []


@pytest.mark.parametrize(
    "command", [("run",), ("show",), ("eval", "--methods", "divprune"), ("tune",), ("bench", "--methods", "divprune")]
)
def test_methods_without_coverage_refuse_before_anything_is_loaded(covist, command):
    name, *rest = command
    method = ["--method", "divprune"] if name in ("run", "show", "tune") else []
    budget = "--budget" if name in ("run", "show") else "--budgets"
    ran = covist(name, *rest, *method, budget, "auto:0.9")
    assert ran.code == 2 and "divprune does not measure coverage" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_plan_says_what_it_cannot_know(covist):
    ran = covist("plan", "--budget", "auto:0.9", "--json")
    assert "known only once it is seen: 16 to 192 here; this plan is for 192" in ran.stderr
    assert ran.json["budget"] == 192
