"""How right an answer is, from 0 to 1, by the definitions of the field.

exact      the same as one of the right answers, but for case, outer space and a final full stop
contains   one of the right answers stands in it, as whole words
vqa        accuracy of VQA: as many people as said the same, of nine and up to three, averaged over who is left out
anls       similarity by edit distance to the nearest right answer; 0 from half of the letters on (DocVQA)
choice     it chooses the right letter, or says the right choice
agreement  how far it says the same as the uncompressed model, token by token: `covist.eval.agreement`
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import ascii_uppercase

from covist.errors import CovistError
from covist.eval.questions import AGREEMENT, Asked
from covist.eval.vqa_text import vqa_normalise

ANLS_THRESHOLD = 0.5
VQA_AGREEING = 3  # people who must agree for a whole point
_LETTER_FORMS = tuple(
    re.compile(form)
    for form in (
        r"^\(?([A-Za-z])\)?[.:]?$",
        r"^\(?([A-Z])[).:]",
        r"\(([A-Z])\)",
        r"(?i:answer|option|choice)(?: is)?:? ([A-Z])\b",
    )
)
"""How answers mark a letter, the surest form first; an article ("A cat") is none of them."""


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
    """min(1, who else said it / 3), averaged over the people left out in turn."""
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
    """Levenshtein's: insertions, deletions and replacements that make one of the other."""
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
    """The letter that an answer picks: by the words of a choice, alone, or marked as in "(B)", "B." and "answer is B".

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
"""By name; "agreement" is not among them, because it compares two answers of the model."""


def metric_names() -> list[str]:
    """Every way to judge an answer.

    >>> covist.eval.metric_names()
    ['exact', 'contains', 'vqa', 'anls', 'choice', 'agreement']
    """
    return [*METRICS, AGREEMENT]


def check_question(question: Asked) -> None:
    """Refuse a question that its metric cannot judge, in one line."""
    if question.metric not in metric_names():
        raise CovistError(f"unknown metric {question.metric!r}; choose one of {', '.join(metric_names())} or auto")
    if not question.question.strip():
        raise CovistError("the question is empty")
    if question.metric != AGREEMENT and not question.answers:
        raise CovistError(f"metric {question.metric} needs an answer to compare with; without one use agreement")
    if question.metric == "vqa" and len(question.answers) <= VQA_AGREEING:
        raise CovistError(f"metric vqa needs the answers of {VQA_AGREEING + 1} people or more (VQA has ten)")
    if len(question.choices) > len(ascii_uppercase):
        raise CovistError(f"{len(question.choices)} choices are more than there are letters")
    if question.metric == "choice":
        for answer in question.answers:
            if chosen_letter(answer, question.choices) is None:
                among = f"one of {', '.join(question.choices)}, or its letter" if question.choices else "a letter"
                raise CovistError(f"the answer {answer!r} is no choice: give {among}")
