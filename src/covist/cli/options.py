"""Options that several commands share, each described once."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from covist.errors import CovistError

if TYPE_CHECKING:
    from covist.api.setup import Setup


class Strategy(str, Enum):
    fixed = "fixed"
    pro = "pro"


class ThemeName(str, Enum):
    """The themes of covist.viz."""

    light = "light"
    dark = "dark"


class MetricName(str, Enum):
    """How answers to `--data` are judged; covist.eval.metrics defines each."""

    auto = "auto"
    exact = "exact"
    contains = "contains"
    vqa = "vqa"
    anls = "anls"
    choice = "choice"
    agreement = "agreement"


Json = Annotated[bool, typer.Option("--json", help="Print JSON with a stable schema instead of tables.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]
MODEL_HELP = "`tiny` or `tiny-next` (embedded, nothing to download), a folder, or a Hugging Face id."
Model = Annotated[str, typer.Option("--model", help=MODEL_HELP)]
Clip = Annotated[
    str | None, typer.Option("--clip", help="CLIP checkpoint of the model's vision tower, if that is a CLIP.")
]
Device = Annotated[str, typer.Option("--device", help="`auto`, `cpu`, `cuda`, ...")]
Images = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="FILE", help="An image file; may be given several times.", show_default=False),
]
Videos = Annotated[
    list[str] | None,
    typer.Option(
        "--video",
        metavar="FILE|FOLDER",
        help="A video file (needs the extra covist\\[video]) or a folder of images; may be given several times.",
        show_default=False,
    ),
]
Frames = Annotated[int, typer.Option("--frames", min=1, help="Frames of a video that are looked at, evenly spaced.")]
Rate = Annotated[float, typer.Option("--fps", help="Images per second in a folder; a video file says it itself.")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="What to ask about it.", show_default=False)]
_BUDGET = typer.Option(
    "--budget",
    help="Visual tokens per image, or per frame of a video: a count (64), a share (11%), or as many as it needs (auto, "
    "auto:0.9, auto:0.9:16:192). All tokens or more leaves it uncompressed.",
    show_default="64",
)
Budget = Annotated[str | None, _BUDGET]
PlannedBudget = Annotated[str, _BUDGET]  # where no covist.json could say another one
MinCoverage = Annotated[
    float | None,
    typer.Option(
        "--min-coverage",
        metavar="SHARE",
        help="An image of which the tokens would cover less (0.9) runs uncompressed.",
        show_default=False,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Method, budget and constants from a file, as `covist tune` and `covist calibrate` save them; "
        "other options come before it.",
        show_default=False,
    ),
]
BUDGETS_HELP = (
    "Visual tokens per image: counts, shares or auto:LEVEL with commas. All tokens or more leaves it uncompressed."
)
StrategyOption = Annotated[
    Strategy | None,
    typer.Option("--strategy", help="CoViST's execution: `fixed` reduces once, `pro` twice more inside the decoder."),
]
MethodOption = Annotated[
    str | None, typer.Option("--method", help="Another method; `covist methods` lists them.", show_default=False)
]
Suite = Annotated[
    str | None,
    typer.Option("--suite", help="Bundled images and questions: scenes, scenes-hd.", show_default="scenes"),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="FILE", help="Your own: one question per line, as JSON.", show_default=False),
]
Metric = Annotated[MetricName, typer.Option("--metric", help="How answers of --data are judged, unless a line says.")]
AnswerTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens", min=1, help="Longest answer.", show_default="64 for your own data, else the right answer's"
    ),
]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer.")]

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Run on Ray (needs the extra covist\\[ray]): on this machine, or on the cluster at auto or HOST:PORT.",
        show_default=False,
    ),
]


def method_name(strategy: Strategy | None, method: str | None) -> str:
    """The method that --strategy and --method ask for together."""
    if strategy is not None and method is not None:
        raise CovistError("give either --strategy (CoViST) or --method, not both")
    return method or f"covist-{(strategy or Strategy.fixed).value}"


def setup(
    config: str | None,
    strategy: Strategy | None,
    method: str | None,
    budget: str | None,
    min_coverage: float | None = None,
) -> Setup:
    """What a command's options and its file say together; what is impossible is refused before anything is loaded."""
    from covist.api.choose import DEFAULT_BUDGET, check_run
    from covist.api.setup import Setup

    own = Setup.of(config)
    named = own.method is not None and strategy is None and method is None
    chosen = next(one for one in (budget, own.budget, str(DEFAULT_BUDGET)) if one is not None)
    name = own.method if named else method_name(strategy, method)
    least = own.min_coverage if min_coverage is None else min_coverage
    check_run(name or method_name(None, None), chosen, least)
    return replace(own, method=name, budget=chosen, min_coverage=least)


def with_ray_address(arguments: list[str]) -> list[str]:
    """The arguments with a value for `--ray` where it has none: `covist batch --ray rows.jsonl` means this machine."""
    from covist.cluster.start import LOCAL, is_address

    given: list[str] = []
    for argument in arguments:
        if given and given[-1] == "--ray" and not (is_address(argument) or argument.startswith("ray://")):
            given.append(LOCAL)
        given.append(argument)
    return [*given, LOCAL] if given and given[-1] == "--ray" else given


def split(text: str, option: str) -> list[str]:
    """The items of a comma-separated option."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise CovistError(f"{option} is empty")
    return items
