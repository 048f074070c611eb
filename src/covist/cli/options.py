"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from covist.cli import completion
from covist.cli.console import be_quiet
from covist.errors import CovistError
from covist.loading import Loading

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
    """How answers to `--data` are scored; covist.eval.metrics defines each metric."""

    auto = "auto"
    exact = "exact"
    contains = "contains"
    vqa = "vqa"
    anls = "anls"
    choice = "choice"
    agreement = "agreement"


Json = Annotated[bool, typer.Option("--json", help="Print JSON with a stable schema instead of tables.")]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", callback=be_quiet, help="Print no progress and no notes, only results and errors."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]
MODEL_HELP = "`tiny`, `tiny-next` or `tiny-video` (embedded, nothing to download), a folder, or a Hugging Face id."
Model = Annotated[str, typer.Option("--model", help=MODEL_HELP, autocompletion=completion.a_model)]
Clip = Annotated[
    str | None, typer.Option("--clip", help="CLIP checkpoint that the vision tower comes from, if it is a CLIP tower.")
]
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
Frames = Annotated[int, typer.Option("--frames", min=1, help="Evenly spaced frames to take from a video.")]
Rate = Annotated[float, typer.Option("--fps", help="Frame rate of a folder of images; a video file has its own.")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="The question.", show_default=False)]
DEFAULT_BUDGET = "64 for LLaVA-1.5 and LLaVA-NeXT, 20% for other models"
_BUDGET = typer.Option(
    "--budget",
    help="Visual tokens to keep per image, or per frame of a video: a count (64), a share (11%), or as many as it "
    "needs (auto, auto:0.9, auto:0.9:16:192); or for all images of a prompt together (total:2048), or by the age of "
    "their turn (ages:256,128,64). A budget of all tokens or more compresses nothing.",
    show_default=DEFAULT_BUDGET,
)
Budget = Annotated[str | None, _BUDGET]
MinCoverage = Annotated[
    float | None,
    typer.Option(
        "--min-coverage",
        metavar="SHARE",
        help="Leave an image uncompressed if its tokens would cover less than this share of it, such as 0.9.",
        show_default=False,
    ),
]
MaxVisualTokens = Annotated[
    int | None,
    typer.Option(
        "--max-visual-tokens",
        metavar="TOKENS",
        help="Most visual tokens of a prompt in any layer: all images are compressed further to keep to it.",
        show_default=False,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="File with method, budget and constants, as `covist tune` and `covist calibrate` save them; "
        "other options override it.",
        show_default=False,
    ),
]
BUDGETS_HELP = (
    "Visual tokens per image, separated by commas: counts, shares or auto:LEVEL. A budget of all tokens or more "
    "compresses nothing."
)
REFERENCE_HELP = "CoViST's frozen concentration reference; `covist concentration` measures it."
StrategyOption = Annotated[
    Strategy | None,
    typer.Option(
        "--strategy", help="CoViST's strategy: `fixed` reduces before the decoder, `pro` also at two of its layers."
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="Use another method; `covist methods` lists them.",
        show_default=False,
        autocompletion=completion.one_method,
    ),
]


def _load_plugins(given: list[str] | None) -> list[str] | None:
    from covist.plugins import Plugin

    for name in given or ():
        Plugin.of(name).load()
    return given


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        help="Run a Python file or module with methods of your own; may be given several times.",
        callback=_load_plugins,
        is_eager=True,
        show_default=False,
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        help="Bundled images and questions: scenes, scenes-hd or films.",
        show_default="scenes",
        autocompletion=completion.a_suite,
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="FILE", help="Your own questions, one JSON object per line.", show_default=False),
]
Metric = Annotated[
    MetricName, typer.Option("--metric", help="How answers to --data are scored, unless a line names a metric.")
]
LONGEST_HELP = "Longest answer, in tokens."
AnswerTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens", min=1, help=LONGEST_HELP, show_default="64 for your own data, else the right answer's"
    ),
]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help=LONGEST_HELP)]

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Run on Ray (needs the extra covist\\[ray]): without an address on this machine, else on the cluster at "
        "`auto` or HOST:PORT.",
        show_default=False,
    ),
]


Command = Callable[..., int | None]


def grouped(name: str, kind: Any, panel: str) -> Callable[[Command], Command]:
    """Give a command one option for each field of a dataclass; it receives them as one object, under `name`."""
    kinds = get_type_hints(kind)
    group = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=Annotated[
                kinds[one.name],
                typer.Option(
                    f"--{one.name.replace('_', '-')}",
                    help=one.metadata["doc"],
                    rich_help_panel=panel,
                    show_default=one.metadata.get("shown", True),
                ),
            ],
        )
        for one in fields(kind)
    ]

    def decorate(command: Command) -> Command:
        shown = inspect.signature(command, eval_str=True).parameters
        own = [parameter for parameter in shown.values() if parameter.name != name]

        def wrapper(**given: Any) -> int | None:
            chosen = kind(**{one.name: given.pop(one.name) for one in group})
            return command(**given, **{name: chosen})

        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        wrapper.__signature__ = inspect.Signature([*own, *group])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in (*own, *group)}
        return wrapper

    return decorate


with_loading = grouped("loading", Loading, "Loading")


def method_name(strategy: Strategy | None, method: str | None) -> str:
    """The method that --strategy or --method names."""
    if strategy is not None and method is not None:
        raise CovistError("give either --strategy (CoViST) or --method, not both")
    return method or f"covist-{(strategy or Strategy.fixed).value}"


def setup(
    config: str | None,
    strategy: Strategy | None,
    method: str | None,
    budget: str | None,
    min_coverage: float | None = None,
    max_visual_tokens: int | None = None,
) -> Setup:
    """The options of a command, with its --config file for what they leave open; bad ones are refused at once."""
    from covist.api.choose import check_setup
    from covist.api.setup import DEFAULT, Setup

    name = None if strategy is method is None else method_name(strategy, method)
    given = Setup(name, budget, min_coverage=min_coverage, max_visual_tokens=max_visual_tokens)
    chosen = given.over(Setup.of(config)).over(DEFAULT)
    check_setup(chosen)
    return chosen


def refuse_ages(setup: Setup) -> None:
    """Refuse budgets by age in a command that asks a single question."""
    from covist.budget import Ages, refuse_of_prompt

    if setup.budget is not None:
        refuse_of_prompt(setup.budget, "ages are those of turns, and this command asks one question", Ages)


def with_ray_address(arguments: list[str]) -> list[str]:
    """The arguments, with a value for a `--ray` that has none: `covist batch --ray rows.jsonl` means this machine."""
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
