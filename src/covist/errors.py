"""The exception that covist raises for bad input."""

from collections.abc import Iterable
from difflib import get_close_matches


class CovistError(ValueError):
    """Bad input, reported in one line that says what was wrong and what to do.

    >>> try:
    ...     covist.create_method("magic")
    ... except covist.CovistError as error:
    ...     print(error)
    unknown method 'magic'; choose one of ...
    """


class MethodFailure(CovistError):
    """A method of another package has failed, which no other input would mend."""


def choose_instead(given: str, choices: Iterable[str], otherwise: str = "") -> str:
    """The end of a refusal of an unknown word: the choice that it resembles, or all of them.

    otherwise: what to say instead of all choices, where there are too many

    >>> choose_instead("DivPrun", ["divprune", "fastv"]), choose_instead("magic", ["divprune", "fastv"])
    ('did you mean divprune?', 'choose one of divprune, fastv')
    """
    choices = list(choices)
    near = nearest(given, choices)
    return f"did you mean {near}?" if near else otherwise or f"choose one of {', '.join(choices)}"


def nearest(given: str, choices: Iterable[str]) -> str | None:
    """The choice that a misspelt word most resembles; None if it resembles none."""
    spelled = {choice.lower(): choice for choice in choices}
    near = get_close_matches(str(given).lower(), spelled, n=1, cutoff=0.7)
    return spelled[near[0]] if near else None
