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

EXTRA = ("fastapi", "prometheus_client", "pydantic", "uvicorn")


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
    clip: options.Clip = None,
    device: options.Device = "auto",
    verbose: options.Verbose = False,
    limits: Limits,
) -> None:
    """Serve the model over HTTP: POST /v1/chat/completions as OpenAI's clients send it, streamed or not.

    A request may choose its own compression: extra_body={"covist": {"budget": 32, "strategy": "pro"}}.
    """
    require_extra()
    from covist.api.choose import DEFAULT_BUDGET, DEFAULT_METHOD
    from covist.serve.keys import Keys
    from covist.serve.logs import write_to_stderr
    from covist.serve.server import run_server
    from covist.serve.service import Service

    chosen = options.setup(config, strategy, method, budget)
    keys = None if api_key_file is None else Keys.read(api_key_file)
    reference = chosen.concentration if concentration is None else concentration
    loaded = load(model, clip, device)
    service = Service(
        loaded,
        budget=chosen.budget or DEFAULT_BUDGET,
        method=chosen.method or DEFAULT_METHOD,
        config=chosen.constants,
        concentration=_reference(loaded) if reference is None else reference,
        limits=limits,
        keys=keys,
        image_hosts=allow_image_host or (),
        temperature=temperature,
    )
    write_to_stderr()
    default = service.default
    where = f"[bold]{service.name}[/] at http://{host}:{port}/v1"
    print_line(f"serving {where} ({default.method}, budget {default.budget})")
    run_server(service, host, port)


def require_extra() -> None:
    """Say how to install what the server needs, if it is not there."""
    if missing := [package for package in EXTRA if find_spec(package) is None]:
        raise CovistError(f"covist serve needs {', '.join(missing)}: pip install 'covist[serve]'")


def _reference(loaded: LoadedModel) -> float:
    """The mean concentration over the bundled scenes: the same number at every start."""
    from covist.eval.subject import Subject
    from covist.eval.suite import load_suite

    return Subject(loaded).concentration(load_suite("scenes"))
