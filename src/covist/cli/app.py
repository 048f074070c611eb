"""The `covist` command: its subcommands, and how errors are reported.

Exit codes: 0 done; 1 unexpected error; 2 wrong input, reported in one line; 3 no budget suffices (tune), or no row
could be answered (batch); 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from covist import __version__
from covist.cli import (
    batch,
    bench,
    calibrate,
    concentration,
    doctor,
    evaluate,
    export,
    listing,
    options,
    plan,
    reproduce,
    run,
    serve,
    show,
    supported,
    tune,
    vllm_args,
)
from covist.cli.console import INTERRUPTED, ReaderGone, discard_unwritten, note, print_line
from covist.errors import CovistError, nearest
from covist.opening import reason_of

USER_ERROR, UNEXPECTED = 2, 1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="covist",
    help="Compress the visual tokens of vision-language models: run, inspect, measure and compare.\n\n"
    "Start with [bold]covist run --compare[/]. It answers a question about a bundled image twice with the embedded "
    "model, once with all visual tokens and once with a few, and shows the savings.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., int | None]] = {
    "run": run.run,
    "show": show.show,
    "plan": plan.plan,
    "bench": bench.bench,
    "eval": evaluate.evaluate,
    "tune": tune.tune,
    "calibrate": calibrate.calibrate,
    "methods": listing.methods,
    "models": supported.models,
    "doctor": doctor.doctor,
    "reproduce": reproduce.reproduce,
    "batch": batch.batch,
    "serve": serve.serve,
    "vllm-args": vllm_args.vllm_args,
    "concentration": concentration.concentration,
    "export": export.export,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"covist {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `covist` script."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    # Threads that busy-wait make a request 20 times slower as soon as another process wants the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _keep_quiet()
    sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    verbose = "--verbose" in arguments
    try:
        code = app(args=options.with_ray_address(arguments), prog_name="covist", standalone_mode=False) or 0
        if code == INTERRUPTED:  # typer turns the interruption of a command into its exit code
            _complain("interrupted")
        return code
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return INTERRUPTED
    except ReaderGone:
        discard_unwritten()
        return 0
    except Exception as error:
        if verbose:
            traceback.print_exc()
        if hasattr(error, "format_message"):  # typer's own errors, about wrong options
            _complain(_usage(error, arguments))
            return USER_ERROR
        if isinstance(error, CovistError):
            _complain(str(error))
            return USER_ERROR
        if isinstance(error, OSError) and error.errno in _FULL:  # where stdout goes: files have reported it by now
            discard_unwritten()
            _complain(f"cannot write the output: {reason_of(error)}")
            return USER_ERROR
        hint = "" if verbose else "; --verbose shows where"
        _complain(f"unexpected {type(error).__name__}: {error}{hint}")
        return UNEXPECTED


def _usage(error: Any, arguments: list[str]) -> str:
    """What is wrong with the words of a command, the nearest right one, and where to look.

    >>> _usage(typer.BadParameter("'fixd' is not one of 'fixed', 'pro'."), ["run"])
    "Invalid value: 'fixd' is not one of 'fixed', 'pro'; did you mean fixed? (see covist run --help)"
    """
    said, _, options = error.format_message().replace("Value error, ", "").partition(" (Possible options: ")
    said = said.removesuffix(".")
    *_, given = re.findall(r"'([^']*)' is not one of|No such option: (\S+)", said) or [("", "")]
    choices = re.findall(r"'([^']*)'", said.partition(" is not one of ")[2]) + re.findall(r"--[\w-]+", options)
    near = nearest("".join(given), choices)
    command = " ".join(["covist", *(word for word in arguments[:1] if word in COMMANDS)])
    return f"{said}{f'; did you mean {near}?' if near else ''} (see {command} --help)"


def _complain(text: str) -> None:
    print_line("covist: " + escape(" ".join(text.split())))


def _keep_quiet() -> None:
    """Silence transformers' loading bars and notes on missing extras; print warnings of libraries as one-line notes."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def show_warning(message: Any, category: Any, *rest: Any, **options: Any) -> None:
        if category is UserWarning:
            note(str(message))

    warnings.showwarning = show_warning
