"""`covist export`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covist.cli import options
from covist.cli.console import out, print_json


class Format(str, Enum):
    lmms_eval = "lmms-eval"


def export(
    destination: Annotated[Path, typer.Option("--out", help="Directory for images, questions and the task.")],
    suite: Annotated[str, typer.Option(help="Suite to export: scenes or scenes-hd.")] = "scenes",
    form: Annotated[Format, typer.Option("--format", help="Format of the task.")] = Format.lmms_eval,
    limit: Annotated[int | None, typer.Option(help="Only the first N images.", show_default="all")] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a suite as a task for lmms-eval, which runs it offline and scores it as `covist eval` does.

    Example: [bold]covist export --suite scenes --out task[/]
    """
    from covist.eval import load_suite
    from covist.lmms.export import export_suite

    task = export_suite(load_suite(suite), destination, limit)
    folder = str(destination)
    if as_json:
        print_json({"format": form.value, "suite": suite, "task": task, "directory": folder})
    else:
        out().print(f"task [bold]{task}[/] in {escape(folder)}; run it with")
        out().print(
            f"  lmms-eval --model covist --model_args pretrained={load_suite(suite).model},budget=64 "
            f"--tasks {task} --include_path {escape(folder)}",
            soft_wrap=True,
        )
