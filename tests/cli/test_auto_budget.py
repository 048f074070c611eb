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


def test_auto_says_when_it_was_capped(covist, model_folder, image):
    capped = asked(covist, model_folder, image, "--budget", "auto:0.999:1:8", "--json")
    (text,) = capped.json["notes"]
    assert text == (
        "auto:0.999:1:8 reached its maximum on 1 of 1 image without covering enough; "
        "auto:0.999:LEAST:MOST sets another maximum"
    )
    assert text in capped.stderr
    free = asked(covist, model_folder, image, "--budget", "auto:0.2:1:400", "--json")
    assert free.json["notes"] == [] and "maximum" not in free.stderr


def test_an_evaluation_says_on_how_many_images_auto_was_capped(covist, model_folder):
    methods = ("--methods", "covist-fixed,covist-max", "--budgets", "auto:0.999:1:8", "--limit", "2")
    ran = covist("eval", "--model", model_folder, *methods, "--json")
    assert "covist-fixed: auto:0.999:1:8 reached its maximum on 2 of 2 images" in ran.stderr
    assert [row["capped"] for row in ran.json["results"]] == [0, 2, 2]


def test_quiet_leaves_answers_and_errors(covist, model_folder, image):
    options = ("--budget", "auto:0.999:1:8", "--quiet")
    ran = asked(covist, model_folder, image, *options)
    assert ran.code == 0 and ran.stderr == "" and "kept 8 of 576 tokens" in ran.stdout
    scored = covist("eval", "--model", model_folder, "--methods", "random", "--budgets", "9", "--limit", "1", "-q")
    assert scored.code == 0 and scored.stderr == "" and "random" in scored.stdout
    refused = covist("run", "--budget", "0", "--quiet")
    assert refused.code == 2 and refused.stderr.startswith("covist: budget must be")
    loud = covist("eval", "--model", model_folder, "--methods", "random", "--budgets", "9", "--limit", "1")
    assert "covist: 0 of 2" in loud.stderr, "the command before was quiet, not this one"
