"""`covist export`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covist.cli import options
from covist.cli.console import out, print_json
from covist.cli.models import NO_FILMS, suite_of


class Format(str, Enum):
    lmms_eval = "lmms-eval"


def export(
    destination: Annotated[Path, typer.Option("--out", help="Directory for images, questions and the task.")],
    suite: options.Suite = None,
    data: options.Data = None,
    metric: options.Metric = options.MetricName.auto,
    form: Annotated[Format, typer.Option("--format", help="Format of the task.")] = Format.lmms_eval,
    limit: Annotated[int | None, typer.Option(help="Only the first N images.", show_default="all")] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a suite or your own data as a task for lmms-eval, which scores it offline as `covist eval` does.

    Examples:
    [bold]covist export --suite scenes --out task[/]
    [bold]covist export --data mine.jsonl --out task[/]
    """
    from covist.lmms.export import export_suite

    asked = suite_of(suite, data, metric, NO_FILMS)
    task = export_suite(asked, destination, limit)
    folder = str(destination)
    if as_json:
        print_json({"format": form.value, "suite": asked.name, "task": task, "directory": folder})
    else:
        model = asked.model if data is None else "MODEL"
        out().print(f"task [bold]{task}[/] in {escape(folder)}; run it with")
        out().print(
            f"  lmms-eval --model covist --model_args pretrained={model},budget=64 "
            f"--tasks {task} --include_path {escape(folder)}",
            soft_wrap=True,
        )
