"""`covist show --stream`: every frame one by one, drawn as a film strip, and what is refused."""

import pytest
from support.films import moving_square, write_file, write_folder

MODEL = ("--model", "tiny-video")


@pytest.fixture
def film(tmp_path):
    return write_folder(tmp_path / "film", moving_square(20))


def test_what_a_stream_holds_is_drawn(covist, film, tmp_path):
    out = tmp_path / "held.png"
    ran = covist("show", *MODEL, "--stream", "--video", film, "--budget", 24, "--out", out, "--json")
    assert ran.code == 0, ran.stderr
    assert out.stat().st_size > 1000
    assert ran.json["frames"] == 20 and ran.json["tokens"] == sum(ran.json["kept"]) == 24
    assert sum(ran.json["weight"]) == 16 * 16 and ran.json["answer"] is None
    starts, stops = zip(*ran.json["spans"], strict=True)
    assert len(starts) == 16 and starts[0] == 0 and stops[-1] == 20 and starts[1:] == stops[:-1]


def test_a_question_may_be_asked_about_the_bundled_film(covist, tmp_path):
    shown = ("--prompt", "what is the first digit?", "--out", tmp_path / "held.svg")
    ran = covist("show", *MODEL, "--stream", "--budget", 128, *shown)
    assert ran.code == 0, ran.stderr
    assert "what is the first digit? 9" in ran.stdout
    assert "Stream of 16 frames: 128 of 256 visual tokens in 16 moments" in " ".join(ran.stdout.split())


def test_of_a_file_so_many_frames_of_each_second_are_taken(covist, tmp_path):
    video = write_file(tmp_path / "film.mp4", moving_square(20), rate=10)
    out = ("--budget", 16, "--out", tmp_path / "held.png", "--json")
    ran = covist("show", *MODEL, "--stream", "--video", video, "--fps", 5, *out)
    assert ran.code == 0, ran.stderr
    assert ran.json["frames"] == 10


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((*MODEL, "--stream"), "--stream needs a --budget"),
        ((*MODEL, "--stream", "--budget", "25%"), "a stream has no end"),
        ((*MODEL, "--stream", "--budget", 64, "--method", "vidcom2"), "'vidcom2' cannot stream"),
        ((*MODEL, "--stream", "--budget", 64, "--strategy", "pro"), "'covist-pro' cannot stream"),
        ((*MODEL, "--stream", "--budget", 64, "--out", "held.html"), "its name must end in .png or .svg or .pdf"),
        (("--stream", "--budget", 64), "--stream needs one --video"),
        ((*MODEL, "--stream", "--budget", 64, "--video", "a", "--video", "b"), "--stream needs one --video"),
        ((*MODEL, "--stream", "--budget", 64, "--video", "missing.mp4"), "missing.mp4"),
    ],
)
def test_what_cannot_be_streamed_is_one_line(covist, arguments, line):
    ran = covist("show", *arguments)
    assert ran.code == 2 and line in " ".join(ran.stderr.split())
    assert len(ran.stderr.strip().splitlines()) <= 3


def test_a_folder_without_frames_is_one_line(covist, tmp_path):
    (tmp_path / "empty").mkdir()
    ran = covist("show", *MODEL, "--stream", "--video", tmp_path / "empty", "--budget", 64)
    assert ran.code == 2 and "contains no images" in ran.stderr
