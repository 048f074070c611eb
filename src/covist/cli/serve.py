"""`covist serve`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from covist.cli import options
from covist.cli.console import print_line
from covist.cli.models import load
from covist.errors import CovistError
from covist.serve.limits import Limits

if TYPE_CHECKING:
    from covist.request.loading import LoadedModel
    from covist.serve.server import Extension

EXTRA = ("fastapi", "prometheus_client", "pydantic", "uvicorn")
PAGE_EXTRA = ("gradio",)


def _with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of `Limits`; it gets them as `Limits` itself."""
    shown = inspect.signature(command, eval_str=True).parameters
    own = [parameter for parameter in shown.values() if parameter.name != "limits"]
    kinds = get_type_hints(Limits)
    limits = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=Annotated[kinds[one.name], typer.Option(help=one.metadata["doc"], rich_help_panel="Limits")],
        )
        for one in fields(Limits)
    ]

    def serve(**given: Any) -> None:
        chosen = Limits(**{one.name: given.pop(one.name) for one in fields(Limits)})
        command(**given, limits=chosen)

    serve.__doc__ = command.__doc__
    serve.__signature__ = inspect.Signature([*own, *limits])  # type: ignore[attr-defined]
    serve.__annotations__ = {one.name: one.annotation for one in (*own, *limits)}
    return serve


@_with_limits
def serve(
    *,
    model: options.Model = "tiny",
    budget: options.Budget = None,
    strategy: options.StrategyOption = None,
    method: options.MethodOption = None,
    min_coverage: options.MinCoverage = None,
    config: options.Config = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys that clients must send, one per line.", show_default=False)
    ] = None,
    allow_image_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Fetch images from there, by https.", show_default=False)
    ] = None,
    concentration: Annotated[
        float | None,
        typer.Option(help="CoViST's frozen reference.", show_default="measured on the bundled scenes at the start"),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="For requests that give none.")] = 0.0,
    page: Annotated[bool, typer.Option("--page", help="Also show a page to ask and to look, at /page.")] = False,
    clip: options.Clip = None,
    device: options.Device = "auto",
    verbose: options.Verbose = False,
    limits: Limits,
) -> None:
    """Serve the model over HTTP: POST /v1/chat/completions as OpenAI's clients send it, streamed or not.

    A request may choose its own compression: extra_body={"covist": {"budget": 32, "strategy": "pro"}}.
    """
    require_extra("covist serve", EXTRA, "serve")
    if page:
        require_extra("covist serve --page", PAGE_EXTRA, "page")
        if api_key_file is not None:
            raise CovistError("--page asks visitors for no key; leave out --page or --api-key-file")
    from covist.api.choose import DEFAULT_BUDGET, DEFAULT_METHOD
    from covist.serve.connections import bind
    from covist.serve.keys import Keys
    from covist.serve.server import run_server
    from covist.serve.service import Service

    chosen = options.setup(config, strategy, method, budget, min_coverage)
    keys = None if api_key_file is None else Keys.read(api_key_file)
    reference = chosen.concentration if concentration is None else concentration
    bound = bind(host, port)
    loaded = load(model, clip, device)
    service = Service(
        loaded,
        budget=chosen.budget or DEFAULT_BUDGET,
        method=chosen.method or DEFAULT_METHOD,
        config=chosen.constants,
        min_coverage=chosen.min_coverage,
        concentration=_reference(loaded) if reference is None else reference,
        limits=limits,
        keys=keys,
        image_hosts=allow_image_host or (),
        temperature=temperature,
    )
    address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}/v1"
    default = service.default
    print_line(f"serving [bold]{service.name}[/] at {address} ({default.method}, budget {default.budget})")
    if page:
        print_line(f"the page is at {address.removesuffix('v1')}")
    run_server(service, bound, _page() if page else None)


def require_extra(command: str, packages: tuple[str, ...], extra: str) -> None:
    """Say how to install what a command needs, if it is not there."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise CovistError(f"{command} needs {', '.join(missing)}: pip install 'covist[{extra}]'")


def _page() -> Extension:
    from covist.page.mount import mount_page

    return mount_page


def _reference(loaded: LoadedModel) -> float:
    """The mean concentration over the bundled scenes: the same number at every start."""
    from covist.eval.subject import Subject
    from covist.eval.suite import load_suite

    return Subject(loaded).concentration(load_suite("scenes"))
