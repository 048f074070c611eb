"""Whatever is wrong with the input: one clear line on stderr, exit code 2, nothing else printed or written."""

from __future__ import annotations

import linecache
import os
import socket
import struct
import time
import zlib
from pathlib import Path

import huggingface_hub.constants
import pytest
from transformers import LlavaProcessor

from covist import tiny


def png(width: int, height: int) -> bytes:
    """A PNG header that announces a size, and hardly any pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 64))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def whole_image() -> bytes:
    return tiny.DEMO_IMAGE.read_bytes()


@pytest.fixture
def bad_files(tmp_path) -> dict[str, Path]:
    contents = {
        "truncated.png": whole_image()[:600],
        "empty.png": b"",
        "zero.png": png(0, 40),
        "giant.png": png(60_000, 60_000),
        "large.png": png(11_000, 11_000),
        "text.png": b"this is no image",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in [*contents, "missing.png"]}


def unwritable(tmp_path: Path) -> Path:
    """A directory in which nothing can be created, also for a superuser, who ignores permissions."""
    if os.geteuid() == 0:
        return Path("/proc/self")
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    return folder


def assert_refused(ran, *words: str) -> None:
    assert ran.code == 2, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.startswith("covist: ") and ran.stderr.count("\n") == 1, ran.stderr
    for word in words:
        assert word in ran.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.png", "does not exist"),
        ("truncated.png", "damaged or truncated"),
        ("empty.png", "is empty"),
        ("zero.png", "zero.png"),
        ("giant.png", "too large"),
        ("large.png", "too large"),
        ("text.png", "not an image"),
    ],
)
@pytest.mark.parametrize("command", ["run", "show"])
def test_bad_images(covist, bad_files, command, name, words):
    assert_refused(covist(command, "--image", bad_files[name], "--prompt", "what is this?"), words, name)


@pytest.mark.parametrize("url", ["https://example.com/scene.png", "data:image/png;base64,abc"])
@pytest.mark.parametrize("command", ["run", "show", "bench"])
def test_urls_are_not_read(covist, command, url):
    assert_refused(covist(command, "--image", url, "--prompt", "what is this?"), "URLs are not read", url)


def test_a_directory_is_not_accepted_as_an_image(covist, tmp_path):
    assert_refused(covist("run", "--image", tmp_path, "--prompt", "what is this?"), "is a directory")


@pytest.mark.parametrize("budget", ["0", "-3", "abc", "", "0%", "101%", "1.5", "nan"])
@pytest.mark.parametrize("command", ["run", "show", "plan"])
def test_impossible_budgets(covist, command, budget):
    assert_refused(covist(command, "--budget", budget), "budget must be", repr(budget))


@pytest.mark.parametrize("prompt", ["", "   "])
def test_an_empty_prompt(covist, image, prompt):
    assert_refused(covist("run", "--image", image, "--prompt", prompt), "--prompt is empty")


def test_a_prompt_with_the_placeholder_of_an_image(covist, model_folder, image):
    asked = ("--image", image, "--prompt", "<image> where is it?")
    assert_refused(covist("run", "--model", model_folder, *asked), "'<image>'", "remove it")


def test_an_image_that_the_processor_refuses(covist, model_folder, image, monkeypatch):
    def refuse(*arguments, **options):
        return int("aspect ratio")

    monkeypatch.setattr(LlavaProcessor, "__call__", refuse)
    asked = ("--image", image, "--prompt", "where is it?")
    assert_refused(covist("run", "--model", model_folder, *asked), "refuses the image", "aspect ratio")


def test_wrong_input_is_recognised_without_the_source_at_hand(covist, monkeypatch):
    monkeypatch.setattr(linecache, "getline", lambda *place: "")
    assert_refused(covist("run", "--budget", "0"), "budget must be")


@pytest.mark.parametrize("command", ["eval", "tune"])
def test_a_negative_seed(covist, command):
    assert_refused(covist(command, "--seed", "-1"), "--seed")


def test_a_prompt_without_an_image(covist):
    assert_refused(covist("run", "--model", "a/checkpoint", "--prompt", "where is it?"), "--image")


def test_an_image_without_a_prompt(covist, image):
    assert_refused(covist("run", "--image", image), "--prompt")


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing", "./no/such/folder", ""])
def test_an_unknown_model(covist, name):
    assert_refused(covist("run", "--model", name), f"unknown model {name!r}")


@pytest.mark.parametrize("option", ["--model", "--clip"])
def test_a_hub_that_cannot_be_reached_is_asked_once(covist, monkeypatch, option):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited to ask again"))
        assert_refused(covist("run", option, "nobody/nothing"), "unknown", "nobody/nothing", "did not provide it")


def test_a_text_only_model(covist, tmp_path):
    from transformers import LlamaConfig

    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "llama")
    assert_refused(covist("run", "--model", tmp_path / "llama"), "text-only")


def test_an_unsupported_vision_model(covist, tmp_path):
    from transformers import CLIPConfig

    CLIPConfig(architectures=["CLIPModel"]).save_pretrained(tmp_path / "clip")
    assert_refused(covist("run", "--model", tmp_path / "clip"), "not supported", "covist models")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--overlay", "{}/out.png"),
        ("show", "--out", "{}/out.png"),
        ("bench", "--out", "{}/results"),
        ("eval", "--out", "{}/results"),
    ],
)
def test_a_read_only_directory(covist, tmp_path, arguments):
    folder = unwritable(tmp_path)
    assert_refused(covist(*(argument.format(folder) for argument in arguments)), "cannot write")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--overlay", "kept.png"),
        ("show", "--out", "figure.png"),
        ("bench", "--out", "a"),
        ("eval", "--out", "a"),
    ],
)
def test_a_misspelt_directory_is_not_made(covist, tmp_path, arguments):
    *command, name = arguments
    assert_refused(covist(*command, tmp_path / "new" / name), "cannot write", f"no directory {tmp_path / 'new'}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("run", "--overlay"), ("show", "--out")])
def test_an_unknown_figure_format(covist, tmp_path, arguments):
    assert_refused(covist(*arguments, tmp_path / "out.jpeg"), ".png or .svg")


@pytest.mark.parametrize("command", ["run", "show"])
def test_an_unknown_method(covist, command, model_folder, tmp_path):
    out = [] if command == "run" else ["--out", tmp_path / "figure.png"]
    ran = covist(command, "--model", model_folder, "--method", "magic", *out)
    assert_refused(ran, "unknown method 'magic'", "covist-fixed")


def test_unknown_methods_of_eval_and_bench(covist):
    assert_refused(covist("eval", "--methods", "magic"), "unknown method 'magic'")
    assert_refused(covist("bench", "--methods", "magic"), "unknown method 'magic'")


def test_strategy_and_method_together(covist):
    assert_refused(covist("run", "--strategy", "pro", "--method", "random"), "not both")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "--preset", "gpt"), "unknown geometry 'gpt'"),
        (("plan", "--preset", "llava-1.5-7"), "did you mean llava-1.5-7b?"),
        (("run", "--method", "divprun"), "did you mean divprune?"),
        (("run", "--strategy", "fixd"), "did you mean fixed? (see covist run --help)"),
        (("run", "--bugdet", "3"), "did you mean --budget? (see covist run --help)"),
        (("eval", "--limit", "many"), "'--limit'"),
        (("rum",), "Did you mean 'run'? (see covist --help)"),
        (("plan", "--budget"), "requires an argument (see covist plan --help)"),
        (("run", "--strategy", "x"), "'x' is not one of 'fixed', 'pro' (see covist run --help)"),
        (("export",), "'--out' (see covist export --help)"),
        (("methods", "one", "two"), "(see covist methods --help)"),
        (("plan", "--layers", "0"), "layers must be at least 1"),
        (("plan", "--text", "-1"), "not negative"),
        (("plan", "--text", "inf"), "finite"),
        (("plan", "--tokens", "0"), "tokens must be at least 1"),
        (("plan", "--strategy", "half"), "half"),
        (("bench", "--geometry", "gpt"), "unknown geometry 'gpt'"),
        (("bench", "--geometry", "llava-1.5-7b", "--scale", "0"), "scale"),
        (("bench", "--prompts", "0"), "--prompts"),
        (("bench", "--compile"), "--compile needs --cache static"),
        (("eval", "--suite", "mme"), "unknown suite 'mme'"),
        (("eval", "--budgets", "64,abc"), "'abc'"),
        (("eval", "--budgets", ","), "--budgets is empty"),
        (("run", "--device", "toaster"), "toaster"),
        (("run", "--colour", "red"), "--colour"),
        (("fly",), "fly"),
    ],
)
def test_wrong_options(covist, arguments, words):
    assert_refused(covist(*arguments), words)
