"""What a row asks: images by path, base64, bytes or struct; words as a prompt or as messages."""

import base64
from io import BytesIO

import pytest
from PIL import Image

from covist import CovistError
from covist.batch.asking import conversation_of, read_image
from covist.batch.rows import read_row

RED = Image.new("RGB", (6, 4), "red")


class Processor:
    image_token, video_token = "<image>", None


def encoded(kind: str = "PNG") -> bytes:
    file = BytesIO()
    RED.save(file, kind)
    return file.getvalue()


def text(kind: str = "PNG") -> str:
    return base64.b64encode(encoded(kind)).decode()


def asked(folder, default=None, **values):
    return conversation_of(read_row(0, values, folder), default, Processor)


@pytest.fixture
def folder(tmp_path):
    RED.save(tmp_path / "red.png")
    RED.save(tmp_path / "at 12:30.png")
    (tmp_path / "sub").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "given",
    [
        "red.png",
        "./sub/../red.png",
        "at 12:30.png",
        text(),
        text("JPEG"),  # begins like an absolute path
        "\n".join([text()[:40], text()[40:]]),
        "data:image/png;base64," + text(),
        encoded(),
        {"bytes": encoded(), "path": "nowhere.png"},
        {"bytes": None, "path": "red.png"},
    ],
    ids=lambda given: str(given)[:24],
)
def test_an_image_may_be_given_in_many_ways(folder, given):
    image = read_image(given, folder, "image 1")
    assert image.size == RED.size and image.mode == "RGB"
    assert all(abs(one - other) < 4 for one, other in zip(image.getpixel((0, 0)), (255, 0, 0), strict=True))


def test_a_path_may_be_absolute(folder, tmp_path_factory):
    assert read_image(str(folder / "red.png"), tmp_path_factory.mktemp("elsewhere"), "image 1").size == RED.size


def test_a_file_whose_name_could_be_base64_is_a_file(folder):
    (folder / ("A" * 80)).write_bytes(encoded())
    assert read_image("A" * 80, folder, "image 1").size == RED.size


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("nowhere.png", "nowhere.png does not exist"),
        ("https://example.org/a.png", "URLs are not read"),
        ("A" * 80, "image 1 is not an image"),
        ("A" * 81, "image 1 is not valid base64"),
        ("data:image/png;base64,!!", "image 1 is not valid base64"),
        ("data:text/plain;base64,aGk=", "image 1 must be a data URL"),
        (b"words", "image 1 is not an image"),
        (encoded()[:50], "image 1 is damaged"),
        ({"bytes": None, "path": None}, "image 1 must be a path"),
        (7, "image 1 must be a path"),
        ("", "image 1 must be a path"),
        ("sub", "is a directory"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_file_that_is_not_an_image_is_refused_in_one_line(folder, given, complaint):
    with pytest.raises(CovistError, match=complaint) as refused:
        read_image(given, folder, "image 1")
    assert "\n" not in str(refused.value)


def test_images_stand_before_the_prompt(folder):
    made = asked(folder, images=["red.png", text()], prompt="which ?")
    assert [part["type"] for part in made.turns[0]["content"]] == ["image", "image", "text"]
    assert len(made.images) == 2


def test_the_prompt_of_the_job_serves_rows_that_have_none(folder):
    words = [
        asked(folder, "what ?", image="red.png", **own).turns[0]["content"][-1]["text"]
        for own in ({}, {"prompt": "why ?"})
    ]
    assert words == ["what ?", "why ?"]


def test_messages_are_turns_with_their_images_in_order(folder):
    messages = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "and"}, {"type": "image_url", "image_url": {"url": "red.png"}}],
        },
    ]
    made = asked(folder, "ignored ?", messages=messages)
    assert [turn["role"] for turn in made.turns] == ["system", "user"]
    assert [part["type"] for part in made.turns[1]["content"]] == ["text", "image"] and len(made.images) == 1


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"prompt": "what ?"}, "no image, images or messages"),
        ({"images": [], "prompt": "what ?"}, "no image, images or messages"),
        ({"images": "red.png", "prompt": "what ?"}, "images must be a list"),
        ({"image": "zero\0byte.png", "prompt": "what ?"}, "zero"),
        ({"image": "https://a.b/red.png", "prompt": "what ?"}, "URLs are not read"),
        ({"image": "red.png", "images": ["red.png"], "prompt": "what ?"}, "both image and images"),
        ({"image": "red.png"}, "no prompt or question; --prompt gives one to rows"),
        ({"image": "red.png", "prompt": "  "}, "the prompt is empty"),
        ({"image": "red.png", "prompt": 7}, "prompt must be text"),
        ({"image": "red.png", "prompt": "look <image> here"}, "contains '<image>'"),
        ({"messages": [{"role": "user", "content": "a"}], "prompt": "b"}, "both messages and prompt"),
        ({"messages": "no json"}, "messages must be a list"),
    ],
)
def test_a_row_that_cannot_be_asked_says_why(folder, values, complaint):
    with pytest.raises(CovistError, match=complaint):
        asked(folder, **values)
