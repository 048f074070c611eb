"""The files that bring the page elsewhere: a container and a Space."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

import covist.cli

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "deploy" / "space"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
FREE = {"pillow", "tomlkit"}
"""What Gradio holds back."""


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)


def test_the_container_copies_files_that_exist():
    copied = [path for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE) for path in line.split()]
    assert len(copied) > 3
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_container_runs_the_documented_command_as_a_user_without_rights():
    (command,) = re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)
    assert json.loads(command) == ["covist", "serve", "--page", "--host", "0.0.0.0"]
    assert "covist serve --page" in (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert DOCKERFILE.index("USER covist") < DOCKERFILE.index("CMD [")
    assert "/health" in DOCKERFILE and "--constraint constraints-page.txt" in DOCKERFILE


def test_the_pages_environment_is_that_of_the_tests_except_for_what_gradio_holds_back():
    page, tests = pins("constraints-page.txt"), pins("constraints.txt")
    assert {name for name in page.keys() & tests.keys() if page[name] != tests[name]} == FREE
    assert {"gradio", "playwright", "torch", "fastapi"} <= page.keys()


def test_the_space_starts_the_server_with_its_page(monkeypatch):
    started = []
    monkeypatch.setattr(covist.cli, "main", lambda: started.append(sys.argv[1:]))
    monkeypatch.setattr(sys, "argv", ["app.py", "--model", "tiny-next"])
    runpy.run_path(str(SPACE / "app.py"))
    assert started == [
        ["serve", "--page", "--host", "0.0.0.0", "--port", "7860", "--model", "tiny-next"],
    ]


@pytest.mark.parametrize(("key", "value"), [("sdk", "gradio"), ("app_file", "app.py"), ("license", "apache-2.0")])
def test_the_space_declares_its_metadata(key, value):
    head = (SPACE / "README.md").read_text(encoding="utf-8").split("---")[1]
    assert f"\n{key}: {value}\n" in head


def test_the_space_asks_for_the_gradio_that_was_tested():
    head = (SPACE / "README.md").read_text(encoding="utf-8")
    assert f"sdk_version: {pins('constraints-page.txt')['gradio']}\n" in head
