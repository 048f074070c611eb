"""The page that `covist show --out kept.html` writes, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browsing import serious_findings

from covist.cli import main

pytestmark = pytest.mark.page
HOSTILE = "where is the blue square? <script>window.hit = 1</script> <img src=x onerror='window.hit = 1'> \"&amp;"
"""A question that would run, if it were not escaped."""
THEMES = {"light": "rgb(255, 255, 255)", "dark": "rgb(30, 33, 41)"}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """A page of each theme, and one without."""
    folder = tmp_path_factory.mktemp("show")
    for name, options in {"open": [], "light": ["--theme", "light"], "dark": ["--theme", "dark"]}.items():
        with pytest.raises(SystemExit, match="0"):
            main(["show", "--prompt", HOSTILE, "--out", str(folder / f"{name}.html"), *options])
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture
def look(browser):
    contexts = []

    def open_file(path: Path, dark: bool = False, width: int = 1280):
        scheme = "dark" if dark else "light"
        contexts.append(browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}))
        page = contexts[-1].new_page()
        page.requested = []
        page.on("request", lambda request: page.requested.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_file
    for context in contexts:
        context.close()


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("dark", [False, True])
def test_a_theme_decides_whatever_the_browser_prefers(look, written, theme, dark):
    assert background(look(written[theme], dark)) == THEMES[theme]


def test_without_a_theme_the_browser_decides(look, written):
    # A page without a background has that of its canvas, which only the scheme of its texts betrays.
    colours = [look(written["open"], dark).evaluate("getComputedStyle(document.body).color") for dark in (False, True)]
    assert colours == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]


def test_question_answer_maps_and_drawings_are_shown_and_nothing_runs(look, written):
    page = look(written["light"])
    heading = page.locator("h3").inner_text()
    assert heading.startswith(HOSTILE) and heading.partition(" \N{RIGHTWARDS ARROW} ")[2]
    assert page.title() == heading
    assert page.evaluate("window.hit") is None and page.locator("script").count() == 0
    captions = page.locator("figcaption:visible").all_inner_texts()
    titles = ["what the encoder sees", "attention", "distinctiveness", "instruction", "combined evidence"]
    assert [caption.splitlines()[0] for caption in captions[:5]] == titles
    assert captions[5:] == ["layers 0-7: 64 tokens", "rebuilt from 64 representatives"]
    assert page.locator(".one:visible").count() == 64
    assert [url for url in page.requested if not url.startswith("data:")] == [written["light"].as_uri()]


@pytest.mark.parametrize("name", ["open", "light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_everybody_can_read_it(look, written, name, width):
    page = look(written[name], dark=name == "open", width=width)
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
