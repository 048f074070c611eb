"""Adds the page to the server's application."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when Gradio is imported

import gradio as gr
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from covist.api.setup import DEFAULT_METHOD
from covist.budget import Plain
from covist.page.choice import Choice
from covist.page.events import Events
from covist.page.examples import fitting_examples
from covist.page.gate import Gate
from covist.page.layout import STYLE, THEME, build_page, script
from covist.page.methods import method_names
from covist.page.uploads import EXAMPLES, SECONDS, Uploads
from covist.serve.service import Service

PATH = "/page"
ICON = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle cx="2" cy="2" r="1" fill="#ffd166"/>
<circle cx="6" cy="3" r="2" fill="#c9184a"/><circle cx="3" cy="7" r="1.5" fill="#590d6e"/></svg>"""


def mount_page(app: FastAPI, service: Service) -> Callable[[], None]:
    """Show the page at `/page`; `/` redirects there. Returns a function that closes the connections of open pages."""
    uploads = Uploads(_folder())
    events = _events(service, uploads)
    page = build_page(events)

    @asynccontextmanager
    async def tidied(app: FastAPI) -> AsyncIterator[None]:
        tidying = asyncio.create_task(_tidy_for_ever(gate))
        try:
            yield
        finally:
            tidying.cancel()

    app.add_api_route("/", _to_page, include_in_schema=False)
    app.add_api_route("/favicon.ico", _icon, include_in_schema=False)
    gr.mount_gradio_app(
        app,
        page,
        PATH,
        app_kwargs={"lifespan": tidied},
        max_file_size=service.limits.image_bytes,
        show_error=False,  # messages of exceptions contain paths; those of refusals are shown all the same
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        theme=THEME,
        css=STYLE,
        js=script(events.examples),
    )
    page.has_launched = page.is_running = True  # as `launch` would: otherwise Gradio takes every path of a file as ours

    def forget(gone: list[str]) -> None:
        for paths in page.temp_file_sets:
            paths.difference_update(gone)

    mount: Any = app.routes[-1]  # Gradio keeps its application nowhere else
    mounted, gate = mount.app, Gate(mount.app, PATH, service, uploads, forget)
    mount.app = gate
    return mounted.stop_event.set


@cache
def _folder() -> Path:
    """The folder for images, of this process alone: by default, all applications of Gradio on a machine share one."""
    above = os.environ.get("GRADIO_TEMP_DIR") or None
    if above is not None:
        Path(above).mkdir(parents=True, exist_ok=True)
    folder = TemporaryDirectory(prefix="covist-page-", dir=above)
    atexit.register(folder.cleanup)
    os.environ["GRADIO_TEMP_DIR"] = str(Path(folder.name).resolve())  # Gradio asks for it with every request
    return Path(folder.name)


async def _tidy_for_ever(gate: Gate) -> None:
    while True:
        await asyncio.sleep(SECONDS / 12)
        await gate.tidy()


def _events(service: Service, uploads: Uploads) -> Events:
    default = service.default
    budget = default.budget or Plain()
    examples, tokens = fitting_examples(service, budget, uploads.folder / EXAMPLES / uuid4().hex)
    return Events(
        service, examples, _start(default.method or DEFAULT_METHOD, budget.count_for(tokens)), tokens, uploads
    )


def _start(method: str, budget: int) -> Choice:
    """The server's default setup, as far as the page can show it."""
    choice = Choice.named(method, budget=budget)
    return choice if choice.method in method_names() else Choice(budget=budget)


async def _to_page(request: Request) -> RedirectResponse:
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{PATH}/{query}")


async def _icon() -> Response:
    return Response(ICON, media_type="image/svg+xml")
