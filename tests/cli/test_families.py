"""`covist run --model FOLDER` answers with a checkpoint of every family."""

import pytest
from support.cases import FAMILIES


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_a_saved_folder_answers(covist, case, image, tmp_path):
    case.model.save_pretrained(tmp_path)
    case.chatting_processor().save_pretrained(tmp_path)
    asked = ("--image", image, "--prompt", "what is this ?", "--budget", 8, "--max-new-tokens", 2)
    ran = covist("run", "--model", tmp_path, *asked, "--json")
    assert ran.code == 0, ran.stderr
    (result,) = ran.json["results"]
    assert result["mean_tokens"] == pytest.approx(8, abs=0.5)
