"""`--budget total:...`, `--budget ages:...` and `--max-visual-tokens` on the command line."""

import pytest

QUESTION = ("--prompt", "where is it?", "--max-new-tokens", "1")


def test_all_images_of_a_question_share_a_total_and_keep_to_a_cap(covist, model_folder, image):
    asked = ("run", "--model", model_folder, "--image", image, "--image", image, *QUESTION, "--json")
    ran = covist(*asked, "--budget", "total:96")
    assert ran.json["budget"] == "total:96" and ran.json["notes"] == []
    assert [shown["budget"] for shown in ran.json["results"][0]["report"]["images"]] == [48, 48]
    ran = covist(*asked, "--budget", "64", "--max-visual-tokens", "80")
    assert [shown["budget"] for shown in ran.json["results"][0]["report"]["images"]] == [40, 40]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("run", "--budget", "ages:256,128"), "ages are those of turns, and this command asks one question"),
        (("show", "--budget", "ages:256,128"), "ages are those of turns, and this command asks one question"),
        (("eval", "--budgets", "ages:256"), "ages are those of turns, and each question here is one turn"),
        (("tune", "--budgets", "ages:256"), "ages are those of turns, and each question here is one turn"),
        (("bench", "--budgets", "ages:256"), "ages are those of turns, and each prompt here is one turn"),
        (("plan", "--budget", "total:256"), "this plan is for one image; give a count, a share or auto"),
        (("vllm-args", "--budget", "total:256"), "vLLM fixes the prompt's length"),
        (("run", "--budget", "total:0"), "budget must be a positive number of tokens"),
        (("run", "--max-visual-tokens", "0"), "max_visual_tokens must be a positive number of tokens"),
        (("run", "--budget", "none", "--max-visual-tokens", "9"), "needs compression, which the plain model has not"),
        (("run", "--method", "fastv", "--max-visual-tokens", "9"), "the first layers see all tokens with fastv"),
        (("batch", "x", "--out", "y", "--budget", "ages:1,2"), "budget must be a positive number of tokens"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line_before_anything_is_loaded(covist, command, words):
    ran = covist(*command)
    assert ran.code == 2 and words in ran.stderr
    assert ran.stderr.count("\n") == 1
