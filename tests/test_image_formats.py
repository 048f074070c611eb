"""Only some formats are decoded, in every room that takes images: a file that is a program is never run."""

from __future__ import annotations

import base64
import json
import re
from io import BytesIO
from pathlib import Path

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from support.batches import answers_of
from support.postscript import PROGRAM, FakeGhostscript

import covist
from covist.batch.sources import open_source
from covist.cli import main
from covist.errors import CovistError
from covist.eval import read_data
from covist.lmms.conversations import from_messages
from covist.request.formats import FORMATS, has_image_ending, readable
from covist.request.images import check_image, decode_image, image_files, load_image
from covist.request.videos import load_video
from covist.serve.errors import Refusal
from covist.serve.images import ImageReader, Source
from covist.serve.limits import Limits

REFUSED = "is not an image that covist can read"
ENDINGS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".bmp": "BMP",
    ".tiff": "TIFF",
    ".ppm": "PPM",
    ".jp2": "JPEG2000",
    ".avif": "AVIF",
    ".heic": "HEIF",
}
PROGRAMS = (".eps", ".ps", ".wmf", ".emf", ".fpx", ".mic", ".psd", ".pdf", ".svg", ".h5", ".iim")


@pytest.fixture
def ghostscript(tmp_path_factory, monkeypatch):
    return FakeGhostscript.install(tmp_path_factory.mktemp("programs") / "bin", monkeypatch)


@pytest.fixture
def photos(tmp_path):
    """A folder with one image, which is PostScript."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(PROGRAM)
    return folder


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code


def test_pillow_itself_would_run_it(ghostscript, photos):
    """Otherwise the other tests show nothing."""
    with pytest.raises(Exception), Image.open(photos / "photo.jpg") as image:  # noqa: B017  # whatever `gs` leaves behind
        image.load()
    assert ghostscript.has_run


def _page(path: Path) -> None:
    from covist.page.asking import data_url

    with pytest.raises(Refusal) as refused:  # by its first bytes, before the server is asked
        data_url(path.read_bytes())
    raise CovistError(refused.value.message)


def _read(reader: ImageReader, url: str) -> None:
    reader.decoded(*reader.measured([Source("image", "image 1", url)]))


def _served(url: str) -> None:
    with pytest.raises(Refusal) as refused:
        _read(ImageReader(Limits(), fetcher=None), url)
    raise CovistError(refused.value.message)


def _data(path: Path) -> None:
    (path.parent / "mine.jsonl").write_text(json.dumps({"image": path.name, "question": "what?", "answer": "red"}))
    read_data(path.parent / "mine.jsonl").items()


ROOMS = {
    "a file": load_image,
    "the header of a file": check_image,
    "bytes": lambda path: decode_image(path.read_bytes()),
    "formats that a caller adds": lambda path: decode_image(path.read_bytes(), formats=("EPS", "PNG")),
    "frames of a video": lambda path: load_video(path.parent),
    "data for eval and tune": _data,
    "lmms-eval": lambda path: from_messages(
        [{"role": "user", "content": [{"type": "image", "url": str(path)}]}], frames=1
    ),
    "the page": _page,
    "the server": lambda path: _served(f"data:image/jpeg;base64,{base64.b64encode(path.read_bytes()).decode()}"),
}


@pytest.mark.parametrize("room", ROOMS)
def test_a_photograph_that_is_postscript_is_refused_and_never_run(ghostscript, photos, room):
    with pytest.raises(CovistError, match="is not an image (that covist can read|in .* format)"):
        ROOMS[room](photos / "photo.jpg")
    assert not ghostscript.has_run


def test_a_program_sent_by_an_allowed_host_is_not_run_either(ghostscript):
    reader = ImageReader(Limits(), fetcher=None)
    with pytest.raises(Refusal, match="is not an image"):
        reader.decoded(*reader.measured([Source("image", "image 1", PROGRAM)]))  # the bytes that a host has sent
    assert not ghostscript.has_run


COMMANDS = {
    "run": ("run", "--image", "photo.jpg", "--prompt", "what?"),
    "show": ("show", "--image", "photo.jpg", "--prompt", "what?", "--out", "kept.png"),
    "bench": ("bench", "--image", "photo.jpg", "--prompt", "what?"),
    "a video": ("run", "--video", ".", "--prompt", "what?"),
    "concentration": ("concentration", "--images", "."),
    "eval": ("eval", "--data", "mine.jsonl"),
    "tune": ("tune", "--data", "mine.jsonl"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_it_in_one_line(ghostscript, photos, monkeypatch, capsys, command):
    (photos / "mine.jsonl").write_text(json.dumps({"image": "photo.jpg", "question": "what?", "answer": "red"}))
    monkeypatch.chdir(photos)
    assert run(*COMMANDS[command]) == 2
    assert re.sub(r"\s+", " ", capsys.readouterr().err).count(REFUSED) == 1
    assert not ghostscript.has_run


def test_a_batch_refuses_it_row_by_row(ghostscript, photos, tmp_path):
    encoded = base64.b64encode(PROGRAM).decode()
    given = [
        {"bytes": None, "path": str(photos / "photo.jpg")},
        {"bytes": PROGRAM, "path": None},
        {"bytes": None, "path": encoded},
        {"bytes": None, "path": f"data:image/jpeg;base64,{encoded}"},
    ]
    table = pyarrow.table({"id": list("abcd"), "image": given, "prompt": ["what?"] * 4})
    parquet.write_table(table, tmp_path / "rows.parquet")
    for source, count in ((photos, 1), (tmp_path / "rows.parquet", 4)):
        out = tmp_path / f"answers-{count}"
        assert run("batch", source, "--prompt", "what?", "--out", out, "--concentration", 0.1) == 3
        errors = [answer.error for answer in answers_of(out)]
        assert len(errors) == count and all("is not an image" in error for error in errors)
    assert not ghostscript.has_run


@pytest.mark.parametrize(("ending", "kind"), ENDINGS.items())
def test_what_cameras_scanners_and_browsers_write_is_read(tmp_path, ending, kind):
    if kind not in readable():
        pytest.skip(f"this Pillow has no {kind}")
    path = tmp_path / f"photo{ending.upper()}"
    Image.new("RGB", (32, 24), "white").save(path, kind)
    assert load_image(path).size == (32, 24)
    assert image_files(tmp_path) == [path]


def test_the_list_has_a_test_for_every_format():
    assert set(ENDINGS.values()) == set(FORMATS)


def test_a_photograph_of_two_images_is_read_as_its_first(tmp_path):
    """Phones write them as .jpg."""
    image = Image.new("RGB", (8, 6))
    image.save(tmp_path / "photo.jpg", "MPO", save_all=True, append_images=[image])
    assert load_image(tmp_path / "photo.jpg").size == (8, 6)


@pytest.mark.parametrize("ending", PROGRAMS)
def test_files_of_other_formats_in_a_folder_are_not_images(tmp_path, ending):
    (tmp_path / f"file{ending}").write_bytes(PROGRAM)
    assert not has_image_ending(f"file{ending}")
    assert image_files(tmp_path) == []
    assert list(open_source(tmp_path).rows()) == []


@pytest.mark.parametrize("kind", ["TGA", "ICO", "PCX", "SGI"])
def test_formats_that_are_not_listed_are_refused_whatever_their_name(kind):
    file = BytesIO()
    Image.new("RGB", (16, 16)).save(file, kind)
    with pytest.raises(CovistError, match=rf"^image {REFUSED} \(PNG, JPEG, "):
        decode_image(file.getvalue())


def test_a_format_that_this_pillow_lacks_is_left_out(monkeypatch, tmp_path):
    Image.init()
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    Image.new("RGB", (4, 4)).save(tmp_path / "photo.png")
    assert load_image(tmp_path / "photo.png").size == (4, 4)
    with pytest.raises(CovistError, match=REFUSED):
        decode_image(b"words")


def test_pillow_opens_files_only_in_the_one_function_with_the_list():
    sources = Path(covist.__file__).parent.rglob("*.py")
    calls = [(path.name, line) for path in sources for line in re.findall(r".*Image\.open\(.*", path.read_text())]
    assert {name for name, line in calls if "formats=" not in line} == set()
    assert {name for name, _ in calls} == {"images.py", "demonstration.py"}
