"""`covist serve`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covist.cli import options
from covist.cli.console import print_line
from covist.errors import CovistError
from covist.extras import require_extra
from covist.loading import Loading
from covist.serve.limits import Limits
from covist.units import counted

if TYPE_CHECKING:
    import socket

    from covist.api.setup import Setup
    from covist.serve.keys import Keys
    from covist.serve.server import Extension
    from covist.serve.spec import ServiceSpec


@options.grouped("limits", Limits, "Limits")
@options.with_loading
def serve(
    *,
    model: options.Model = "tiny",
    budget: options.Budget = None,
    strategy: options.StrategyOption = None,
    method: options.MethodOption = None,
    min_coverage: options.MinCoverage = None,
    max_visual_tokens: options.MaxVisualTokens = None,
    config: options.Config = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What clients call the model.", show_default="that of its folder")
    ] = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option(help="Encrypt connections (https) with this certificate.", show_default=False)
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option(help="The key of the certificate, if it is in another file.", show_default=False)
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages from here (https://example.com, or * for all) ask the server (CORS).",
            show_default=False,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys that clients must send, one per line.", show_default=False)
    ] = None,
    allow_image_host: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Fetch images from this host, over https.", show_default=False),
    ] = None,
    concentration: Annotated[
        float | None,
        typer.Option(help=options.REFERENCE_HELP, show_default="measured on the bundled scenes at the start"),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Temperature of requests that give none.")] = 0.0,
    page: Annotated[bool, typer.Option("--page", help="Also serve a web page to try the model, at /page.")] = False,
    ray: options.Ray = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Copies of the model, with --ray.", show_default="1")
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX[,OPTION=VALUE]",
            help="Copies of the model by load, with --ray; the options are those of Ray Serve.",
            show_default=False,
        ),
    ] = None,
    plugin: options.Plugins = None,
    clip: options.Clip = None,
    loading: Loading,
    verbose: options.Verbose = False,
    limits: Limits,
) -> None:
    """Serve a model to OpenAI clients over HTTP: POST /v1/chat/completions, streamed or not.

    A request may choose its own compression:
    extra_body={"covist": {"budget": 32, "strategy": "pro"}}
    """
    require_extra("covist serve", "serve")
    _check_page(page, ray)
    _check_ray(ray, replicas, autoscale)
    from covist.api.setup import Setup
    from covist.plugins import Plugin
    from covist.serve.connections import Tls, bind, checked_origins
    from covist.serve.keys import Keys
    from covist.serve.spec import ServiceSpec

    chosen = options.setup(config, strategy, method, budget, min_coverage, max_visual_tokens)
    keys = None if api_key_file is None else Keys.read(api_key_file)
    front = {"tls": Tls.read(ssl_certfile, ssl_keyfile), "origins": checked_origins(allow_origin or ())}
    bound = bind(host, port)
    spec = ServiceSpec(
        model=model,
        name=served_model_name,
        clip=clip,
        loading=loading.over(chosen.loading),
        setup=Setup(concentration=concentration).over(chosen),
        limits=limits,
        image_hosts=tuple(allow_image_host or ()),
        temperature=temperature,
        plugins=tuple(map(Plugin.of, plugin or ())),
    )
    if ray is None:
        _serve_here(spec, keys, bound, page, **front)
    else:
        _serve_on_ray(spec, keys, bound, ray, replicas, autoscale, **front)


def _serve_here(spec: ServiceSpec, keys: Keys | None, bound: socket.socket, page: bool, **front: Any) -> None:
    from transformers.utils import logging

    from covist.serve.server import run_server

    logging.disable_progress_bar()
    service = spec.build(keys)
    address = _announce(service.name, service.default, bound, front["tls"] is not None)
    if page:
        asked = "" if keys is None else "; it asks for a key as the password, with any user name"
        print_line(f"the page is at {address.removesuffix('v1')}{asked}")
    run_server(service, bound, _page() if page else None, **front)


def _serve_on_ray(
    spec: ServiceSpec,
    keys: Keys | None,
    bound: socket.socket,
    ray: str,
    replicas: int | None,
    autoscale: str | None,
    **front: Any,
) -> None:
    from covist.cluster.scaling import Scaling
    from covist.cluster.start import ray_running, worker_reservation

    scaling = Scaling.read(replicas, autoscale, target=spec.limits.batch_size)
    with ray_running(ray):
        from covist.cluster.fleet import Fleet
        from covist.serve.server import run_server

        share = worker_reservation(scaling.replicas, spec.loading.device or "auto")
        fleet = Fleet(spec, scaling, share, application_name(bound), keys)
        copies = f"{autoscale} replicas" if autoscale else counted(scaling.replicas, "replica")
        _announce(fleet.name, fleet.default, bound, front["tls"] is not None, f", {copies}")
        run_server(fleet, bound, **front)


def application_name(bound: socket.socket) -> str:
    """A name for host and port, so that the same command replaces what an earlier one left on a cluster."""
    return f"covist-{platform.node()}-{bound.getsockname()[1]}"


def _announce(name: str, default: Setup, bound: socket.socket, is_encrypted: bool, more: str = "") -> str:
    """Print where the model is served; returns the address."""
    host, port = bound.getsockname()[:2]
    address = f"http{'s' * is_encrypted}://{f'[{host}]' if ':' in host else host}:{port}/v1"
    print_line(f"serving [bold]{name}[/] at {address} ({default.method}, budget {default.budget}{more})")
    return address


def _check_page(page: bool, ray: str | None) -> None:
    if not page:
        return
    require_extra("covist serve --page", "page")
    if ray is not None:
        raise CovistError("--page needs the model in this process; leave out --page or --ray")


def _check_ray(ray: str | None, replicas: int | None, autoscale: str | None) -> None:
    if ray is not None:
        require_extra("covist serve --ray", "ray")
    elif replicas is not None or autoscale is not None:
        raise CovistError(f"{'--autoscale' if replicas is None else '--replicas'} needs --ray")


def _page() -> Extension:
    from covist.page.mount import mount_page

    return mount_page
