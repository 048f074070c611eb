"""`covist concentration`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covist.cli import options
from covist.cli.console import out, print_json
from covist.cli.models import load
from covist.loading import Loading
from covist.units import counted


@options.with_loading
def concentration(
    *,
    images: Annotated[Path, typer.Option("--images", metavar="FOLDER", help="Images similar to those you will serve.")],
    model: options.Model = "tiny",
    limit: Annotated[int | None, typer.Option(help="Only the first N images.", show_default="all")] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="covist.json to save the result in, new or existing.", show_default=False),
    ] = None,
    loading: Loading,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure how concentrated a model's encoder attention is: the reference that CoViST compares each image with.

    With a frozen reference, the tokens kept of an image do not depend on earlier
    images. Servers need this.
    """
    from covist.api.origin import tuned_on
    from covist.api.setup import Setup
    from covist.outputs import writable_file
    from covist.request.concentration import folder_concentration

    setup = Setup.load(save) if save is not None and writable_file(save).exists() else Setup()
    loaded = load(model, None, loading, setup)
    measured, count = folder_concentration(loaded, images, limit)
    if save is not None:
        origin = {**setup.origin, **tuned_on(loaded.name, loaded.model.config, measured)}
        replace(setup, concentration=measured, origin=origin).save(save)
    if as_json:
        saved = None if save is None else str(save)
        print_json({"model": model, "images": count, "concentration": measured, "file": saved})
    else:
        place = "" if save is None else f", saved in {escape(str(save))}"
        out().print(f"concentration [bold]{measured}[/] over {counted(count, 'image')}{place}")
