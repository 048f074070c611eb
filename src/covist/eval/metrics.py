"""Metrics that score an answer from 0 to 1, as defined in the literature.

exact      equal to one of the right answers, ignoring case, outer spaces and a final full stop
contains   contains one of the right answers, as whole words
vqa        VQA accuracy: min(1, people who gave this answer / 3), averaged over leaving out each person in turn
anls       similarity by edit distance to the nearest right answer; 0 if half of the letters or more differ (DocVQA)
choice     names the letter or the text of the right choice
agreement  agrees with the answer of the uncompressed model, token by token: `covist.eval.agreement`
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import ascii_uppercase

from covist.errors import CovistError, choose_instead
from covist.eval.questions import AGREEMENT, AUTO, Asked
from covist.eval.vqa_text import vqa_normalise

ANLS_THRESHOLD = 0.5
VQA_AGREEING = 3  # people who must agree for a full score
_LETTER_FORMS = tuple(
    re.compile(form)
    for form in (
        r"^\(?([A-Za-z])\)?[.:]?$",
        r"^\(?([A-Z])[).:]",
        r"\(([A-Z])\)",
        r"(?i:answer|option|choice)(?: is)?:? ([A-Z])\b",
    )
)
"""Forms in which answers give a letter, the most certain first; none of them matches an article ("A cat")."""


def normalise(answer: str) -> str:
    """Case, outer space and a final full stop do not matter; everything else does."""
    return answer.strip().rstrip(".").strip().lower()


def exact(said: str, question: Asked) -> float:
    return float(normalise(said) in map(normalise, question.answers))


def contains(said: str, question: Asked) -> float:
    words = " ".join(said.lower().split())
    return float(any(_has_words(words, normalise(answer)) for answer in question.answers))


def _has_words(text: str, wanted: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(' '.join(wanted.split()))}(?!\w)", text))


def vqa(said: str, question: Asked) -> float:
    """min(1, people who gave this answer / 3), averaged over leaving out each person in turn."""
    given, people = vqa_normalise(said), len(question.answers)
    same = sum(vqa_normalise(answer) == given for answer in question.answers)
    soft = [min(1.0, count / VQA_AGREEING) for count in (same, same - 1)]
    return ((people - same) * soft[0] + same * soft[1]) / people if same else 0.0


def anls(said: str, question: Asked) -> float:
    return max(_similarity(_plain(said), _plain(answer)) for answer in question.answers)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _similarity(one: str, other: str) -> float:
    """1 - edit distance / letters of the longer one; 0 where half of them differ."""
    distance = edit_distance(one, other) / max(len(one), len(other), 1)
    return 1 - distance if distance < ANLS_THRESHOLD else 0.0


def edit_distance(one: str, other: str) -> int:
    """Levenshtein distance: insertions, deletions and replacements that turn one text into the other."""
    row = list(range(len(other) + 1))
    for done, letter in enumerate(one, start=1):
        diagonal, row[0] = row[0], done
        for place, facing in enumerate(other, start=1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (letter != facing))
    return row[-1]


def choice(said: str, question: Asked) -> float:
    picked = chosen_letter(said, question.choices)
    return float(picked is not None and picked in {chosen_letter(one, question.choices) for one in question.answers})


def chosen_letter(said: str, choices: tuple[str, ...] = ()) -> str | None:
    """The letter that an answer picks: by the text of a choice, as a letter, or as in "(B)", "B." and "answer is B".

    >>> chosen_letter("The answer is (B).", ("red", "blue"))
    'B'
    """
    texts = dict(zip(ascii_uppercase, map(normalise, choices), strict=False))
    named = [letter for letter, text in texts.items() if text == normalise(said)]
    if not named:
        found = next((match for form in _LETTER_FORMS if (match := form.search(said.strip()))), None)
        named = [] if found is None else [found[1].upper()]
    if not named:
        named = [letter for letter, text in texts.items() if _has_words(_plain(said), text)]
    return named[0] if len(named) == 1 and (not choices or named[0] in texts) else None


METRICS: dict[str, Callable[[str, Asked], float]] = {
    "exact": exact,
    "contains": contains,
    "vqa": vqa,
    "anls": anls,
    "choice": choice,
}
"""Metrics by name; "agreement" is not among them, because it compares two answers of the model."""


def metric_names() -> list[str]:
    """The names of all metrics that can score an answer.

    >>> covist.eval.metric_names()
    ['exact', 'contains', 'vqa', 'anls', 'choice', 'agreement']
    """
    return [*METRICS, AGREEMENT]


def check_question(question: Asked) -> None:
    """Refuse a question that its metric cannot score."""
    if question.metric not in metric_names():
        choices = [*metric_names(), AUTO]
        raise CovistError(f"unknown metric {question.metric!r}; {choose_instead(question.metric, choices)}")
    if not question.question.strip():
        raise CovistError("the question is empty")
    if question.metric != AGREEMENT and not question.answers:
        raise CovistError(f"metric {question.metric} needs an answer to compare with; without one use agreement")
    if question.metric == "vqa" and len(question.answers) <= VQA_AGREEING:
        raise CovistError(f"metric vqa needs the answers of {VQA_AGREEING + 1} people or more (VQA has ten)")
    if len(question.choices) > len(ascii_uppercase):
        raise CovistError(f"{len(question.choices)} choices are too many; at most {len(ascii_uppercase)} are possible")
    if question.metric == "choice":
        for answer in question.answers:
            if chosen_letter(answer, question.choices) is None:
                among = f"one of {', '.join(question.choices)}, or its letter" if question.choices else "a letter"
                raise CovistError(f"the answer {answer!r} is not a choice; give {among}")
