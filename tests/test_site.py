"""The site: built strictly without a network, complete in itself, and no link of it or of the root's pages is dead."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from markdown.extensions.toc import slugify
from support.tools import tool

import covist
import covist.eval
import covist.reproduce
import covist.tiny
import covist.viz
from covist.families.registry import preset_named
from covist.plan import make_plan

ROOT = Path(__file__).parents[1]
NO_NETWORK = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Page(HTMLParser):
    """What a browser would load for a page, where it links to, and where links can lead."""

    loaded: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given and given.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(given["href"])
        self.loaded += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    if sys.version_info < (3, 11):
        pytest.skip("zensical needs Python 3.11")
    command = [sys.executable, "tools/site/build.py", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env={**os.environ, **NO_NETWORK}, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Page]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        page = found[path.relative_to(site).as_posix()] = Page()
        page.feed(path.read_text(encoding="utf-8"))
    return found


def test_nothing_is_loaded_from_elsewhere(site, pages):
    outside = {name: [one for one in page.loaded if urlsplit(one).netloc] for name, page in pages.items()}
    assert {name: found for name, found in outside.items() if found} == {}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", styles) == []


def test_resources_and_links_of_pages_exist(site, pages):
    dead = []
    for name, page in pages.items():
        for target in {*page.links, *page.loaded}:
            parts = urlsplit(target)
            if name == "404.html" or parts.scheme or parts.netloc:  # that page knows no place that it stands at
                continue
            led = (site / name).parent / unquote(parts.path) if parts.path else site / name
            other = pages.get(os.path.relpath(led, site))
            if not led.is_file() or (other and parts.fragment and unquote(parts.fragment) not in other.anchors):
                dead.append(f"{name}: {target}")
    assert dead == []


def test_links_of_the_pages_in_the_root_lead_somewhere(pages):
    dead = []
    for path in ROOT.glob("*.md"):
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        own = {slugify(heading, "-") for heading in re.findall(r"^#+ (.+)$", text, re.M)}
        for target in re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\s\"]+)", text):
            parts = urlsplit(target)
            if parts.scheme:
                continue
            built = pages.get(Path(parts.path).with_suffix(".html").name) if parts.path.startswith("docs/") else None
            anchors = own if not parts.path else built.anchors if built else set()
            if not (ROOT / parts.path).exists() or (parts.fragment and parts.fragment not in anchors):
                dead.append(f"{path.name}: {target}")
    assert dead == []


def test_the_readme_and_the_first_page_begin_alike():
    readme, index = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/index.md"))
    words, code = index.partition("\n# covist\n\n")[2].split("\n\n")[0], FENCE.search(index)[0]
    assert words.startswith("A vision-language model") and code.startswith("```python")
    assert words in readme and code in readme


def test_the_search_knows_every_page_and_works_from_a_folder(site, pages):
    index = (site / "search.js").read_text(encoding="utf-8").removeprefix("var __index = ").rstrip(";\n")
    found = {entry["location"].partition("#")[0] for entry in json.loads(index)["items"]}
    assert found == set(pages) - {"404.html"} - {old.replace(".md", ".html") for old in redirects()}
    assert "./assets/iframe-worker.js" in pages["index.html"].loaded


def redirects() -> dict[str, str]:
    return settings()["plugins"]["redirects"]["redirect_maps"]


def settings() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11, as zensical
    return tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def test_every_page_is_in_the_navigation():
    named = re.findall(r"'([\w-]+\.md)'", str(settings()["nav"]))
    elsewhere = {"messages.md", "changelog.md", "contributing.md", "security.md"}
    assert sorted(named) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | elsewhere)


def test_old_addresses_lead_to_pages(pages):
    for old, new in redirects().items():
        assert not (ROOT / "docs" / old).exists() and (ROOT / "docs" / new).exists()
        assert pages[old.replace(".md", ".html")].links == [new.replace(".md", ".html")]


def test_the_reference_describes_every_public_function_and_class(pages):
    rooms = (covist, covist.eval, covist.reproduce, covist.tiny, covist.viz)
    public = {
        f"{room.__name__}.{name}"
        for room in rooms
        for name in room.__all__
        if not inspect.ismodule(getattr(room, name)) and hasattr(getattr(room, name), "__name__")
    }
    assert public <= pages["api.html"].anchors


def test_the_page_of_families_is_what_they_say_about_themselves():
    shown, now = (ROOT / "docs" / "families.md").read_text(encoding="utf-8"), tool("families_page.py").page()
    pinned = f"\ntransformers=={version('transformers')}\n" in (ROOT / "constraints.txt").read_text()
    if not pinned:  # which other models there are hangs on the release
        shown, now = (text.partition("## Not supported")[0] for text in (shown, now))
    assert shown == now, "run python tools/families_page.py"


def test_the_messages_that_are_explained_are_raised_and_shown(site):
    listing = tool("site/messages.py")
    raised = [message for found in listing.by_file().values() for message in found]
    explained = listing.explained()
    assert len(explained) > 30
    assert [message for message in explained if not any(one.startswith(message) for one in raised)] == []
    shown = unescape((site / "messages.html").read_text(encoding="utf-8"))
    assert [message for message in raised if message not in shown] == []
    assert shown.count("Two handles cannot share a model.") == 1  # the cause of one, from the page on troubleshooting


def test_messages_are_found_in_every_form_that_the_source_has():
    source = """
LIMIT = "nothing may be so long"
def reason(name):
    return f"{name} cannot be read here"
def check(value, name, kind):
    word = "first choice" if value else "second choice"
    require(value, "place", f"value must be {value}")
    if not value:
        raise CovistError(LIMIT)
    if kind:
        raise CovistError(f"{kind}: the {word} of {value!r} " "is wrong") from None
    raise CovistError(reason(name))
"""
    assert set(tool("site/messages.py").messages(ast.parse(source))) == {
        "nothing may be so long",
        "…: the first choice of … is wrong",
        "…: the second choice of … is wrong",
        "…: value must be …",
        "… cannot be read here",
    }


def test_the_expected_savings_are_what_plans_compute():
    page = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
    asked = re.findall(r"^covist plan --preset (\S+) --budget (\d+)$", page, re.M)
    plans = [make_plan(preset_named(name)[0], int(budget)).to_dict() for name, budget in asked]
    shown = [tuple(map(float, found)) for found in re.findall(r"\| ([\d.]+) % \| ([\d.]+) % \|$", page, re.M)]
    assert shown == [(round(100 * plan["flops_ratio"], 1), round(100 * plan["kv_ratio"], 1)) for plan in plans]
