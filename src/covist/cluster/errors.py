"""Errors of Ray in one line: its own texts are tracebacks of several processes."""

from __future__ import annotations

import re

from covist.errors import CovistError

_OURS = re.compile(r"CovistError: (.+)")


def first_cause(error: BaseException) -> str:
    """The message of the last `CovistError` in the text of an error, or else its last line."""
    text = str(error).strip()
    ours = _OURS.findall(text)
    return ours[-1].strip() if ours else (text.splitlines() or [type(error).__name__])[-1].strip()


def refusal(what: str, error: BaseException) -> CovistError:
    """An error that says what happened and why."""
    return CovistError(f"{what}: {first_cause(error)}")
