"""The columns of the paper's tables as tasks of lmms-eval 0.7.3: what to run, and which figure to read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

INCLUDED = Path(__file__).parent / "lmms_tasks"
"""Additional tasks, for `lmms-eval --include_path`."""


@dataclass(frozen=True)
class Task:
    """A column. Its score is the sum of `metrics`, times `scale`."""

    heading: str
    runs: str  # the task's name in lmms-eval
    metrics: tuple[str, ...]
    scale: float = 100.0
    also: tuple[str, ...] = ()  # other tasks of lmms-eval that give the same score
    splits: tuple[str, ...] = ()  # tasks that together form this one, if their samples were logged
    digits: int = 1
    may_lack: bool = False  # a part of a task that a limited run may not reach

    @property
    def names(self) -> tuple[str, ...]:
        return (self.runs, *self.also)


_PERCEPTION, _COGNITION = "mme_perception_score", "mme_cognition_score"
TASKS = {
    "gqa": Task("GQA", "gqa", ("exact_match",)),
    "mmb": Task("MMB", "mmbench_en_dev", ("gpt_eval_score",), scale=1.0, also=("mmbench_en_dev_static",)),
    "mme": Task("MME", "mme", (_PERCEPTION, _COGNITION), scale=1.0, digits=0),
    "mme_p": Task("MME-P", "mme", (_PERCEPTION,), scale=1.0, digits=0),
    "pope": Task("POPE", "pope", ("pope_f1_score",), splits=("pope_adv", "pope_pop", "pope_random")),
    "sqa": Task("SQA", "scienceqa_img", ("exact_match",)),
    "textvqa": Task("VQA-T", "textvqa_val_ocr", ("exact_match",)),
    "vqav2": Task("VQAv2", "vqav2_val", ("exact_match",)),
    "mmb_cn": Task("MMB-CN", "mmbench_cn_dev", ("gpt_eval_score",), scale=1.0),
}
"""Tasks by their names in the table files. Scores are in percent, MME's in points."""
_SUITE = ":"


def family_column(suite: str, family: str) -> str:
    """The name of a column for one family of questions of a bundled suite."""
    return f"{suite}{_SUITE}{family}"


def task_of(column: str) -> Task:
    """The task of a column: one of `TASKS`, or a family of an exported suite.

    >>> task_of("scenes:color").runs
    'covist_scenes'
    """
    suite, is_ours, family = column.partition(_SUITE)
    if not is_ours:
        return TASKS[column]
    return Task(family, f"covist_{suite.replace('-', '_')}", (family,), may_lack=True)


PAIRED = frozenset({"mme"})
"""Tasks of lmms-eval that score pairs of questions, and fail on half a pair."""
