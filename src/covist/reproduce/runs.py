"""Which rows of a table covist can run, and the commands for them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covist.errors import CovistError
from covist.families.registry import geometry_named
from covist.loading import AS_STORED, Loading
from covist.methods.grammar import VANILLA
from covist.reproduce import paper
from covist.reproduce.paper import PaperRow, PaperTable
from covist.reproduce.systems import method_of
from covist.reproduce.tasks import INCLUDED, PAIRED, task_of
from covist.tiny import Size

LMMS_EVAL = "lmms-eval"
OPENAI_CLIP = "openai/clip-vit-large-patch14-336"
COVIST = "covist-"
STRATEGIES = {"covist-fixed": "fixed", "covist-pro": "pro"}
_MAIN_ROWS = {"f": "covist-fixed", "h": "covist-pro"}  # rows of the cumulative study that are the main configurations


@dataclass(frozen=True)
class Checkpoint:
    """A model of the paper on the hub, or the embedded one."""

    pretrained: str
    clip: str | None = None
    note: str | None = None  # how the paper's inputs differ from those of a command
    concentration: str | None = "running"  # the paper's reference is a running mean over the images


CHECKPOINTS = {
    "llava-1.5-7b": Checkpoint("llava-hf/llava-1.5-7b-hf", OPENAI_CLIP),
    "llava-1.5-13b": Checkpoint("llava-hf/llava-1.5-13b-hf", OPENAI_CLIP),
    "llava-next-7b": Checkpoint(
        "llava-hf/llava-v1.6-vicuna-7b-hf",
        OPENAI_CLIP,
        "the paper feeds every image at 672 x 672, 2,880 content tokens; the processor follows the image's shape",
    ),
    "qwen2.5-vl-7b": Checkpoint(
        "Qwen/Qwen2.5-VL-7B-Instruct",
        None,
        "the paper feeds every image at 1008 x 1008, 1,296 tokens; the processor follows the image's size",
    ),
    "tiny": Checkpoint("tiny", concentration=None),
}
TINY_TOKENS = 576


@dataclass(frozen=True)
class LmmsRun:
    """A model with a method at a budget: what one command of lmms-eval measures."""

    model: str  # a preset
    method: str
    budget: int | None  # None for the uncompressed model

    @property
    def folder(self) -> str:
        """A folder without commas and equals signs, at which lmms-eval would split a path."""
        method = re.sub(r"[:,](\w+=)?", "-", self.method)  # priortr:counts=nominal becomes priortr-nominal
        return f"{self.model}/{method}" + (f"-{self.budget}" if self.budget else "")

    @property
    def shape(self) -> tuple[int, int]:
        """Visual tokens of an image, and layers of the decoder."""
        if self.model == "tiny":
            return TINY_TOKENS, Size().decoder_layers
        geometry = geometry_named(self.model)
        return geometry.tokens, geometry.layers


@dataclass(frozen=True)
class Job:
    """A run and the command for its missing results; the command is empty if it is finished."""

    name: str
    folder: Path
    command: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        return not self.command

    @property
    def line(self) -> str:
        """The command for the shell."""
        return shlex.join(self.command)

    def to_dict(self) -> dict[str, Any]:
        return {"run": self.name, "finished": self.is_finished, "command": self.line}


@dataclass(frozen=True)
class Settings:
    """How the commands are run, and where the results are."""

    results: Path = Path("reproduced")
    limit: int | None = None
    batch_size: int = 1
    launcher: tuple[str, ...] = (LMMS_EVAL,)
    pretrained: str | None = None  # instead of the paper's model
    clip: str | None = None
    loading: Loading = AS_STORED

    def __post_init__(self) -> None:
        if re.search(r"[,=]", str(self.results)):
            problem = "lmms-eval splits paths at commas and equals signs; give one without them"
            raise CovistError(f"--results {self.results}: {problem}")
        for given in filter(None, (self.pretrained, self.clip, *self._loading.values())):
            if "," in given:
                raise CovistError(f"{given}: lmms-eval splits model arguments at commas; give a value without any")
        if self.limit is not None and self.limit < 1:
            raise CovistError(f"--limit must be at least 1, got {self.limit}")
        if not self.launcher:
            raise CovistError("--launcher is empty; give the program to run, for example lmms-eval")

    def folder(self, run: LmmsRun) -> Path:
        """The folder of a run's results; those of a limited run are separate."""
        top = self.results / f"limit-{self.limit}" if self.limit else self.results
        return top / run.folder

    @property
    def _loading(self) -> dict[str, str]:
        return {name: str(value) for name, value in vars(self.loading).items() if value}

    def arguments(self, run: LmmsRun) -> dict[str, str]:
        """The values of `--model_args`, by name."""
        checkpoint = CHECKPOINTS[run.model]
        model = {"pretrained": self.pretrained or checkpoint.pretrained, **self._loading}
        found = {**model, "budget": str(run.budget or "none").lower()}
        if run.method in STRATEGIES:
            found["strategy"] = STRATEGIES[run.method]
        elif run.method != VANILLA:
            found["method"] = run.method.replace(",", ";")  # lmms-eval splits model arguments at commas
        else:
            return found
        if run.method.startswith(COVIST) and checkpoint.concentration:
            found["concentration"] = checkpoint.concentration
        clip = self.clip or checkpoint.clip
        return {**found, "clip": clip} if clip else found

    def task_folder(self, task: str) -> Path:
        """The folder to which `covist export` writes a suite as a task."""
        return self.results / task

    def command(self, run: LmmsRun, tasks: Iterable[str]) -> list[str]:
        """The command that scores a run on the columns `tasks`."""
        names = list(dict.fromkeys(task_of(task).runs for task in tasks))
        if self.limit and self.limit % 2 and PAIRED.intersection(names):
            raise CovistError(f"--limit {self.limit}: MME scores pairs of questions; give an even number")
        return [
            *self.launcher,
            *("--model", "covist"),
            *("--model_args", ",".join(f"{key}={value}" for key, value in self.arguments(run).items())),
            *("--tasks", ",".join(names)),
            *self._included(names),
            *("--batch_size", str(self.batch_size)),
            *(("--limit", str(self.limit)) if self.limit else ()),
            "--log_samples",
            *("--output_path", str(self.folder(run))),
        ]  # fmt: skip

    def _included(self, names: list[str]) -> list[str]:
        """The option that lets lmms-eval find tasks that are not its own; no table needs two folders."""
        if any((INCLUDED / f"{name}.yaml").is_file() for name in names):
            return ["--include_path", str(INCLUDED)]
        exported = [name for name in names if name.startswith("covist_")]
        return ["--include_path", str(self.task_folder(exported[0]))] if exported else []


def run_of(table: PaperTable, row: PaperRow) -> LmmsRun | None:
    """The run for a row; None for systems that covist does not have."""
    if row.system == paper.VANILLA:
        return reference_run(table)
    if table.suite:
        return LmmsRun(table.model, row.system, row.budget)
    if table.name == "components":
        letter = row.system[1]
        return LmmsRun(table.model, _MAIN_ROWS.get(letter, f"covist-row-{letter}"), row.budget)
    method = method_of(row.system, table.model)
    if method is None or row.budget is None:
        return None
    counts_after = table.name == "after" and not method.endswith("=nominal")
    return LmmsRun(table.model, method, _layer_mean(table, row.budget) if counts_after else row.budget)


def _layer_mean(table: PaperTable, kept: int) -> int:
    """The layer mean, by which covist counts budgets, of all tokens in two layers and `kept` in the others."""
    tokens, layers = reference_run(table).shape
    return round((2 * tokens + (layers - 2) * kept) / layers)


def reference_run(table: PaperTable) -> LmmsRun:
    """The run of the uncompressed model, which every retention needs."""
    return LmmsRun(table.model, VANILLA, None)
