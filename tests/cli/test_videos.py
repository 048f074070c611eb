"""`--video`: run and show on folders of checkpoints, images and videos in one prompt, and what is refused."""

import json
from functools import cache

import pytest
from PIL import Image
from support.cases import first_of
from support.films import moving_square, write_file, write_folder

PROMPT = ("--prompt", "what is the colour of this ?", "--max-new-tokens", 2)
FAMILIES = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Folders of small models, saved as any other."""

    @cache
    def saved(family):
        folder, case = tmp_path_factory.mktemp(family), first_of(family)
        case.model.save_pretrained(folder)
        case.chatting_processor().save_pretrained(folder)
        return folder

    return saved


@pytest.fixture
def film(tmp_path):
    return write_folder(tmp_path / "film", moving_square(12))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_question_about_a_folder_of_frames(covist, checkpoint, film, family):
    ran = covist("run", "--model", checkpoint(family), "--video", film, "--frames", 8, *PROMPT, "--budget", 2, "--json")
    assert ran.code == 0, ran.stderr
    (answer,) = ran.json["results"]
    (video,) = answer["report"]["images"]
    assert (video["kind"], video["frames"], video["budget"]) == ("video", 4, 8)
    (stage,) = video["stages"]
    assert len(stage["kept_per_frame"]) == 4 and sum(stage["kept_per_frame"]) == len(stage["indices"]) == 8
    assert sum(stage["weight_per_frame"]) == pytest.approx(sum(stage["weights"]), abs=1e-2)
    assert answer["mean_tokens"] == 8 and video["tokens"] == 4 * video["tokens_per_frame"]


def test_an_image_and_a_video_in_one_prompt(covist, checkpoint, film, tmp_path):
    Image.new("RGB", (90, 90), "green").save(tmp_path / "one.png")
    shown = ("--image", tmp_path / "one.png", "--video", film, "--frames", 4, *PROMPT, "--budget", "50%")
    ran = covist("run", "--model", checkpoint("qwen3-vl"), *shown, "--compare", "--json")
    assert ran.code == 0, ran.stderr
    plain, answer = ran.json["results"]
    image, video = answer["report"]["images"]
    assert (image["kind"], video["kind"], video["frames"]) == ("image", "video", 2)
    assert plain["mean_tokens"] == (image["tokens"] + video["tokens"]) / 2
    assert video["mean_tokens"] == video["tokens"] / 2


@pytest.mark.parametrize("name", ["film.png", "film.html"])
def test_a_film_strip_is_drawn(covist, checkpoint, film, tmp_path, name):
    asked = ("--model", checkpoint("qwen2.5-vl"), "--video", film, "--frames", 7, *PROMPT, "--strategy", "pro")
    ran = covist("show", *asked, "--budget", 4, "--out", tmp_path / name)
    assert ran.code == 0, ran.stderr
    assert (tmp_path / name).stat().st_size > 10_000


def test_a_video_file_is_read(covist, checkpoint, tmp_path):
    file = write_file(tmp_path / "film.mp4", moving_square(20))
    ran = covist("run", "--model", checkpoint("qwen2-vl"), "--video", file, "--frames", 4, *PROMPT, "--json")
    assert ran.code == 0, ran.stderr
    assert ran.json["results"][0]["report"]["images"][0]["frames"] == 2


def test_a_model_without_videos_names_families_that_take_them(covist, film):
    ran = covist("run", "--video", film, *PROMPT)
    assert ran.code == 2
    assert "tiny (llava-1.5) takes no videos; these families do: " in ran.stderr and "qwen3-vl" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--video", "nowhere.mp4", *PROMPT), "video nowhere.mp4 does not exist"),
        (("--video", "nowhere.mp4"), "--video needs a --prompt"),
        (("--prompt", "what?", "--model", "a/checkpoint"), "--prompt needs an --image or --video"),
    ],
)
def test_a_bad_video_gives_one_line(covist, arguments, complaint):
    ran = covist("run", *arguments)
    assert ran.code == 2 and complaint in ran.stderr and len(ran.stderr.strip().splitlines()) == 1


def test_a_note_counts_a_budget_by_frame(covist, checkpoint, film):
    ran = covist(
        "run", "--model", checkpoint("qwen2-vl"), "--video", film, "--frames", 4, "--budget", 64, *PROMPT, "--json"
    )
    (note,) = json.loads(ran.stdout)["notes"]
    assert "budget 64" in note
