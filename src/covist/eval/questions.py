"""What is asked about an image, and how its answer is judged."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Protocol

AUTO = "auto"
AGREEMENT = "agreement"
SOFT_ANSWERS = 10
"""So many people answered each question of VQA; as many answers are judged by its accuracy."""


ASK_FOR_LETTER = "Answer with the option's letter from the given choices directly."
"""How LLaVA's evaluation asks for one of several choices."""


class Asked(Protocol):
    """A question as suites hold it; a `Question`, or one about a scene of the embedded models."""

    @property
    def question(self) -> str: ...
    @property
    def family(self) -> str:
        """The column of the tables that it counts for."""

    @property
    def answers(self) -> tuple[str, ...]:
        """Every right answer; without any, the answer of the uncompressed model is the right one."""

    @property
    def metric(self) -> str: ...
    @property
    def choices(self) -> tuple[str, ...]:
        """What can be chosen from, of which an answer may also name the letter."""


@dataclass(frozen=True)
class Question:
    """A question of your own.

    answers: every right answer; none if there is none to compare with
    metric: how an answer is judged, a name of `covist.eval.METRICS`; "auto" goes by what is given: without answers
        "agreement", with choices "choice", with ten answers or more "vqa", else "exact"
    family: questions of one family share a column of the tables, and count as one of the scores whose mean is the
        accuracy; by default the metric's name
    choices: what can be chosen from; they are listed after the question, with letters

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
    """What the model is asked: the question, with its choices if it has any.

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
