"""Questions about an image, and how their answers are scored."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Protocol

AUTO = "auto"
AGREEMENT = "agreement"
SOFT_ANSWERS = 10
"""People who answered each question of VQA; with so many answers, "auto" means VQA accuracy."""


ASK_FOR_LETTER = "Answer with the option's letter from the given choices directly."
"""The prompt with which LLaVA's evaluation asks for one of several choices."""


class Asked(Protocol):
    """A question of a suite: a `Question`, or one about a scene of the embedded models."""

    @property
    def question(self) -> str: ...
    @property
    def family(self) -> str:
        """The column of the tables that it counts for."""

    @property
    def answers(self) -> tuple[str, ...]:
        """Every right answer; if there is none, the answer of the uncompressed model is the right one."""

    @property
    def metric(self) -> str: ...
    @property
    def choices(self) -> tuple[str, ...]:
        """The choices; an answer may also give the letter of one."""


@dataclass(frozen=True)
class Question:
    """A question about an image or a video, with its right answers if they are known.

    answers: every right answer; empty if none is known
    metric: how to score an answer, one of `covist.eval.metric_names()`. "auto" means "agreement" without answers,
        "choice" with choices, "vqa" with ten answers or more, else "exact"
    family: questions of one family share a column of the tables; accuracy is the mean over families. By default the
        name of the metric
    choices: choices to list after the question, with letters

    >>> from covist.eval.questions import Question
    >>> Question("what is red?", ("the car",)).metric
    'exact'
    """

    question: str
    answers: tuple[str, ...] = ()
    metric: str = AUTO
    family: str = ""
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from covist.eval.metrics import check_question

        for name, value in (("answers", self.answers), ("choices", self.choices)):
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if self.metric == AUTO:
            object.__setattr__(self, "metric", self._suitable())
        check_question(self)
        if not self.family:
            object.__setattr__(self, "family", self.metric)

    def _suitable(self) -> str:
        if not self.answers:
            return AGREEMENT
        if self.choices:
            return "choice"
        return "vqa" if len(self.answers) >= SOFT_ANSWERS else "exact"


def posed(asked: Asked) -> str:
    """The text of the prompt: the question, with its choices if it has any.

    >>> print(posed(Question("what is red?", "A", choices=("the car", "the sky"))))
    what is red?
    A. the car
    B. the sky
    Answer with the option's letter from the given choices directly.
    """
    if not asked.choices:
        return asked.question
    listed = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, asked.choices, strict=False)]
    return "\n".join([asked.question, *listed, ASK_FOR_LETTER])
