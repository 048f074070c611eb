"""The first page of the site, and the gallery, in a real browser."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.browsing import serious_findings

pytestmark = [pytest.mark.page, pytest.mark.skipif(sys.version_info < (3, 11), reason="zensical needs Python 3.11")]
ROOT = Path(__file__).parents[2]
SCREENS = pytest.mark.parametrize("width", [1280, 390])
SCHEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, from a server that only serves files."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "tools" / "site" / "build.py", folder], check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def look(browser, site):
    contexts, complaints = [], []

    def open_page(name: str, width: int = 1280, dark: bool = False):
        scheme = "dark" if dark else "light"
        contexts.append(browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 844}))
        page = contexts[-1].new_page()
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.on("response", lambda answer: complaints.append(answer.url) if answer.status >= 400 else None)
        page.on(
            "request", lambda asked: None if asked.url.startswith((site, "data:")) else complaints.append(asked.url)
        )
        page.goto(f"{site}/{name}", wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@SCREENS
@SCHEMES
def test_everybody_can_read_the_first_page_at_any_width(look, width, dark):
    page = look("index.html", width, dark)
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@SCHEMES
def test_the_first_page_shows_a_photograph_and_a_scene_with_what_is_kept_of_them(look, dark):
    page = look("index.html", dark=dark)
    shown = page.locator(".front-images img:visible").evaluate_all(
        "all => all.map(one => [one.getAttribute('src').split('#')[0], one.naturalWidth > 0, one.alt != ''])"
    )
    theme = "dark" if dark else "light"
    names = ["photograph", f"photograph-kept-{theme}", "scene", f"scene-kept-{theme}"]
    assert shown == [[f"front/{name}.webp", True, True] for name in names]
    words, images = (page.locator(name).bounding_box() for name in (".front-words", ".front-images"))
    assert words["x"] + words["width"] <= images["x"] and images["y"] + images["height"] < 844


def test_on_a_phone_words_come_before_images(look):
    page = look("index.html", width=390)
    words, images = (page.locator(name).bounding_box() for name in (".front-words", ".front-images"))
    assert words["y"] + words["height"] <= images["y"] and page.locator(".front-button").bounding_box()["y"] < 844


def test_the_site_has_no_logo(look):
    assert look("results.html").locator(".md-logo:visible").count() == 0


@pytest.mark.parametrize("anchor", ["before-the-decoder", "inside-the-decoder", "every-family", "a-film"])
def test_an_old_address_of_the_gallery_leads_to_its_page(look, anchor):
    page = look(f"gallery.html#{anchor}")
    page.locator(f"#{anchor} ~ p a", has_text="Look at them").first.click()
    page.wait_for_url("**/gallery-*.html")
    assert page.locator("article img:visible").count() >= 1
