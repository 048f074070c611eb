"""Adds the page to the server's application."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when Gradio is imported

import gradio as gr
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from covist.errors import CovistError
from covist.page.asking import UNCOMPRESSED, make_request
from covist.page.choice import Choice
from covist.page.events import Events
from covist.page.examples import write_examples
from covist.page.layout import STYLE, THEME, build_page
from covist.page.methods import method_names
from covist.schedule import resolve_budget
from covist.serve.errors import Refusal
from covist.serve.service import Service

PATH = "/page"
ICON = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle cx="2" cy="2" r="1" fill="#ffd166"/>
<circle cx="6" cy="3" r="2" fill="#c9184a"/><circle cx="3" cy="7" r="1.5" fill="#590d6e"/></svg>"""


def mount_page(app: FastAPI, service: Service) -> Callable[[], None]:
    """Show the page at `/page`; `/` redirects there. Returns a function that closes the connections of open pages."""
    app.state.examples = TemporaryDirectory(prefix="covist-page-")  # removed with the application
    page = build_page(_events(service, Path(app.state.examples.name)))
    app.add_api_route("/", _to_page)
    app.add_api_route("/favicon.ico", _icon)
    gr.mount_gradio_app(
        app,
        page,
        PATH,
        allowed_paths=[app.state.examples.name],
        max_file_size=service.limits.image_bytes,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        theme=THEME,
        css=STYLE,
    )
    mounted = app.routes[-1].app  # type: ignore[attr-defined]  # Gradio keeps it nowhere else
    return mounted.stop_event.set


def _events(service: Service, folder: Path) -> Events:
    examples = write_examples(service.name, folder)
    first = make_request(service.name, examples[0].path, examples[0].question, UNCOMPRESSED)
    try:
        tokens = service.visual_tokens(first)
    except Refusal as refusal:
        raise CovistError(f"--page: the limits refuse the page's own example ({refusal.message})") from None
    return Events(service, examples, _start(service, tokens), tokens)


def _start(service: Service, tokens: int) -> Choice:
    """The server's default setting, as far as the page can show it."""
    default = service.default
    budget = min(Choice.budget, tokens) if default.is_plain else resolve_budget(default.budget, tokens)
    choice = Choice.named(default.method, budget=budget)
    return choice if choice.method in method_names() else Choice(budget=budget)


async def _to_page(request: Request) -> RedirectResponse:
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{PATH}/{query}")


async def _icon() -> Response:
    return Response(ICON, media_type="image/svg+xml")
