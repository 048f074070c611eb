"""docs/methods.md says what the methods say about themselves now."""

import pytest
from support import tools

from covist import available_methods
from covist.methods import registry
from covist.methods.absent import absent_systems


@pytest.fixture(scope="module")
def tool():
    return tools.tool("methods_page.py")


def test_the_page_is_up_to_date(tool):
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), f"run {tool.COMMAND}"


def test_the_table_of_methods_made_for_videos_is_up_to_date(tool):
    text = tool.VIDEO_PAGE.read_text(encoding="utf-8")
    assert text == tool.video_page(text), f"run {tool.COMMAND}"
    for name, method in available_methods().items():
        assert (f"](methods.md#{name})" in text) == (method.info.made_for == "video")


def test_every_method_has_a_section_and_every_missing_system_a_line(tool):
    lines = tool.page().splitlines()
    built_in = [name for name, method in available_methods().items() if method.__module__.startswith("covist.")]
    assert sorted(line.removeprefix("#### ") for line in lines if line.startswith("#### ")) == built_in
    for system in absent_systems():
        assert sum(line.startswith(f"| {system.name} | {system.venue} |") for line in lines) == 1


def test_a_method_of_another_package_is_left_out(tool, monkeypatch):
    class Foreign(available_methods()["uniform"]):
        name, __module__ = "foreign", "elsewhere"

    before = tool.page()
    monkeypatch.setitem(registry._METHODS, "foreign", Foreign)
    assert "foreign" in available_methods() and tool.page() == before
