"""Settings as JSON files. Whatever is wrong with a file or a value is a `CovistError` of one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from covist.errors import CovistError
from covist.outputs import writable_file, write_json

Settings = TypeVar("Settings")


def plain(value: Any) -> Any:
    """A number or array of numpy or torch as Python's own numbers and lists; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_tuples(value: Any) -> Any:
    """A value with tuples instead of lists and arrays, so that equal settings are equal keys."""
    value = plain(value)
    return tuple(as_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


def as_json(name: str, value: Any) -> Any:
    """A value as JSON gives it back. `name` is what a value that JSON cannot hold is called in the error."""

    def converted(part: Any) -> Any:
        if plain(part) is part:
            raise CovistError(f"{name} holds a {type(part).__name__}, which JSON cannot; use texts, numbers and lists")
        return plain(part)

    return json.loads(json.dumps(value, default=converted))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Anything wrong with it raises a `ValueError` of one line, also what is nested beyond Python's depth.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def save_settings(path: str | Path, values: dict[str, Any]) -> None:
    """Write a file, or leave the one that is there as it was."""
    write_json(writable_file(path), as_json("settings", values))


def load_settings(path: str | Path, make: Callable[[Any], Settings], what: str = "config") -> Settings:
    """What `make` builds from the contents of a file; `what` is what the file is called in an error."""
    try:
        values = parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CovistError(f"{what} {path} cannot be read ({error})") from None
    except ValueError as error:
        raise CovistError(f"{what} {path} is not JSON ({error})") from None
    try:
        return make(values)
    except CovistError as error:
        raise CovistError(f"{what} {path}: {error}") from None
