"""The embedded model behind the server, and a browser in front of it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import CONCENTRATION, Running, serving

from covist.api.setup import Setup
from covist.request.loading import LoadedModel, load_model
from covist.serve.server import Extension
from covist.serve.service import Service

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 240_000
"""Milliseconds: a machine under load must not make a test fail."""


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    return load_model("tiny", device="cpu")


@pytest.fixture
def service(loaded) -> Iterator[Service]:
    """The service alone, without HTTP."""
    service = Service(loaded, Setup(concentration=CONCENTRATION))
    yield service
    service.close()


@pytest.fixture(scope="session")
def mount_page() -> Extension:
    pytest.importorskip("gradio", reason="the page needs gradio: make test-page")
    from covist.page.mount import mount_page

    return mount_page


@pytest.fixture(scope="module")
def paged(loaded, mount_page) -> Iterator[Running]:
    """The server with its page."""
    with serving(Service(loaded, Setup(concentration=CONCENTRATION)), mount_page) as running:
        yield running


@pytest.fixture(scope="module")  # while it is open, playwright's event loop runs in this thread
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-page")
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(paged, browser) -> Iterator[Callable[..., Visitor]]:
    """Opens the page for one more visitor and waits for the answer that it shows by itself.

    Whatever a test does, the browser must not complain: about a missing file, or in its console.
    """
    contexts, visitors = [], []

    def open_page(
        query: str = "",
        width: int = 1280,
        dark: bool = False,
        at: Running = paged,
        key: str | None = None,
        answered: bool = True,
    ) -> Visitor:
        context = browser.new_context(
            viewport={"width": width, "height": 844 if width < 600 else 900},
            color_scheme="dark" if dark else "light",
            http_credentials=None if key is None else {"username": "anybody", "password": key},
        )
        contexts.append(context)
        visitor = Visitor(context.new_page())
        visitors.append(visitor)
        visitor.page.goto(f"{at.url}/{query}")
        if answered:
            visitor.wait_for_answers()
        return visitor

    yield open_page
    for context in contexts:
        context.close()
    assert [visitor.complaints for visitor in visitors] == [[]] * len(visitors)


@pytest.fixture
def slow(mount_page, monkeypatch) -> Iterator[threading.Event]:
    """Holds back every answer until the event is set."""
    from covist.page import events

    ready, ask_together = threading.Event(), events.ask_together

    async def wait(service, requests):
        while not ready.is_set():
            await asyncio.sleep(0.01)
        async for replies in ask_together(service, requests):
            yield replies

    monkeypatch.setattr(events, "ask_together", wait)
    yield ready
    ready.set()


class Visitor:
    """Somebody who looks at the page."""

    def __init__(self, page: Any):
        self.page = page
        self.requested: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("response", lambda answer: self._note(answer.status >= 400, f"{answer.status} {answer.url}"))
        page.on("console", lambda line: self._note(line.type == "error", line.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))

    def _note(self, is_bad: bool, complaint: str) -> None:
        if is_bad:
            self.complaints.append(complaint)

    def compare(self, count: int = 5) -> None:
        """Open the comparison and wait for what its methods kept."""
        self.page.get_by_role("tab", name="Compare methods").click()
        self.page.click("#cv-compare")
        self.wait_for_comparison(count)

    def wait_for_comparison(self, count: int = 5) -> None:
        self.page.wait_for_function("count => document.querySelectorAll('#cv-grid .covist').length == count", arg=count)

    def top(self, selector: str) -> float:
        return self.page.locator(selector).bounding_box()["y"]

    def wait_for_answers(self, tokens: str = "") -> None:
        """Until the drawing belongs to complete answers, of which ours has `tokens`."""
        self.page.wait_for_function(
            """tokens => {
              const shown = [...document.querySelectorAll('#cv-answers .cv-tokens')].map(one => one.textContent);
              return shown.length == 2 && shown.every(Boolean) && shown[0].startsWith(tokens)
                && document.querySelector('#cv-drawing .covist');
            }""",
            arg=tokens,
        )

    @property
    def answers(self) -> list[str]:
        return self.page.locator("#cv-answers .cv-text").all_inner_texts()

    @property
    def discs(self) -> int:
        """Representatives that are drawn in the stage that is shown."""
        return self.page.locator("#cv-drawing figure:visible .one").count()

    def ask(self, question: str) -> None:
        self.page.fill("#cv-question textarea, #cv-question input", question)
        self.page.click("#cv-ask")

    def upload(self, path: Path) -> None:
        self.page.set_input_files("#cv-image input[type=file]", str(path))
