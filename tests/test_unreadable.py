"""Image files that cannot be opened: every room says why in the same words, in one line, and never waits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from covist.batch.asking import read_image
from covist.cli import main
from covist.errors import CovistError
from covist.eval import read_data
from covist.opening import open_file
from covist.request.formats import has_image_ending, readable
from covist.request.images import check_image, load_image
from covist.request.videos import load_video

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and links")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _dangling(path: Path) -> None:
    path.symlink_to("gone.png")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


TROUBLES = {
    "a directory": ("photo.png", Path.mkdir, "is a directory"),
    "a pipe": ("photo.png", _pipe, "is a pipe or a device, not a file"),
    "a dangling link": ("photo.png", _dangling, "is a link to gone.png, which does not exist"),
    "a link to itself": ("photo.png", _loop, "cannot be read: too many levels of symbolic links"),
    "a long name": (f"{'n' * 300}.png", lambda path: None, "cannot be read: file name too long"),
    "a missing file": ("photo.png", lambda path: None, "does not exist"),
}
ROOMS = {
    "a file": load_image,
    "its header": check_image,
    "a row": lambda path: read_image(path.name, path.parent, "image 1"),
    "data": lambda path: read_data(written(path)).items(),
}


def written(path: Path) -> Path:
    data = path.parent / "mine.jsonl"
    data.write_text(json.dumps({"image": path.name, "question": "what?", "answer": "red"}))
    return data


@pytest.fixture(params=TROUBLES)
def trouble(request, tmp_path) -> tuple[Path, str]:
    name, make, words = TROUBLES[request.param]
    make(tmp_path / name)
    return tmp_path / name, words


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_why_a_file_cannot_be_read(trouble, room):
    path, words = trouble
    with pytest.raises(CovistError, match=f"{path.name} {words}") as refused:
        ROOMS[room](path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("command", ["run", "show", "bench", "eval", "tune"])
def test_commands_say_so_in_one_line(trouble, capsys, monkeypatch, command):
    path, words = trouble
    asked = ("--image", path, "--prompt", "what?") if command in ("run", "show", "bench") else ("--data", written(path))
    assert _refused(capsys, command, *asked).endswith(f"{path.name} {words}")


def _refused(capsys, *words: object) -> str:
    with pytest.raises(SystemExit, match="^2$"):
        main([str(word) for word in words])
    said = capsys.readouterr()
    assert said.out == ""
    return " ".join(said.err.split())


@pytest.mark.parametrize("command", ["run", "show", "eval", "tune", "concentration"])
def test_a_file_that_may_not_be_read_is_refused(tmp_path, capsys, monkeypatch, command):
    """Tests may run as a superuser, who may read everything."""
    path = tmp_path / "photo.png"
    Image.new("RGB", (8, 8)).save(path)
    data, real = written(path), os.open

    def denied(name, *flags):
        if Path(os.fsdecode(name)) == path:
            raise PermissionError(13, "Permission denied", name)
        return real(name, *flags)

    monkeypatch.setattr(os, "open", denied)
    asked = {"eval": ("--data", data), "tune": ("--data", data), "concentration": ("--images", tmp_path)}
    given = asked.get(command, ("--image", path, "--prompt", "what?"))
    assert _refused(capsys, command, *given).endswith("photo.png cannot be read: permission denied")


def test_a_folder_of_frames_that_may_not_be_listed_is_refused(tmp_path, monkeypatch):
    def denied(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(CovistError, match="cannot be read: permission denied"):
        load_video(tmp_path)


def test_a_video_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "film.mp4")
    with pytest.raises(CovistError, match="film.mp4 is a pipe or a device"):
        load_video(tmp_path / "film.mp4")


def test_a_device_is_refused_and_a_name_with_a_zero_byte_stays_printable():
    with pytest.raises(CovistError, match="image /dev/zero is a pipe or a device"):
        load_image("/dev/zero")
    with pytest.raises(CovistError, match=r"^file a\\0b cannot be read: embedded null byte$"):
        open_file("a\0b")


SIGNATURES = {
    b"%!PS-Adobe-3.0 EPSF-3.0": "it is PostScript (EPS), which covist does not run: convert it to PNG",
    b"\xc5\xd0\xd3\xc6\x20\0\0\0": "it is PostScript (EPS), which covist does not run: convert it to PNG",
    b"%PDF-1.7": "it is a PDF file: convert its pages to PNG",
    b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>': "it is SVG, a drawing without pixels",
}


@pytest.mark.parametrize("start", SIGNATURES, ids=lambda start: start[:4].hex())
def test_an_image_of_another_kind_is_called_by_its_name(tmp_path, start):
    (tmp_path / "photo.jpg").write_bytes(start)
    with pytest.raises(CovistError) as refused:
        load_image(tmp_path / "photo.jpg")
    assert SIGNATURES[start] in str(refused.value)


def test_a_photograph_of_a_phone_names_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("covist.request.images.readable", lambda: ["PNG", "JPEG"])
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(CovistError, match=r"it is HEIC, which needs pillow-heif: pip install 'covist\[heic\]'"):
        load_image(tmp_path / "photo.heic")


def test_photographs_of_phones_are_read_if_pillow_heif_is_there(tmp_path):
    pytest.importorskip("pillow_heif")
    assert "HEIF" in readable() and has_image_ending("photo.HEIC")
    path, image = tmp_path / "photo.heic", Image.new("RGB", (64, 32), "red")
    image.paste("blue", (0, 0, 32, 32))
    image.save(path, "HEIF")
    shown = load_image(path)
    assert shown.size == (64, 32) and shown.getpixel((8, 16))[2] > 200 and shown.getpixel((56, 16))[0] > 200
    whole = path.read_bytes()
    for damaged in (whole[:200], whole[:-20]):
        path.write_bytes(damaged)
        with pytest.raises(CovistError, match="photo.heic is (damaged|not an image)"):
            load_image(path)
