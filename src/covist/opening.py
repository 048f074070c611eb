"""Files that are read: opened without waiting for anyone, and refused in one line if they cannot be read."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from covist.errors import CovistError


def open_file(path: str | Path, kind: str = "file") -> BinaryIO:
    """Open a file to read its bytes. Whatever is wrong raises a `CovistError` that calls it `kind` and its path.

    A pipe or a device is refused: opening it could wait for ever, and reading it could never end.

    >>> open_file("nowhere.png", "image")
    Traceback (most recent call last):
    covist.errors.CovistError: image nowhere.png does not exist
    """
    name = f"{kind} {path}".replace("\0", "\\0")
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  # closed by the caller
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise CovistError(f"{name} {_problem(Path(path), error)}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CovistError(f"{name} is a pipe or a device, not a file")
    return file


def reason_of(error: Exception) -> str:
    """What an error of the system says, without its number and the path."""
    return (getattr(error, "strerror", None) or str(error).partition("\n")[0]).lower()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, IsADirectoryError):
        return "is a directory"
    if isinstance(error, FileNotFoundError):
        return f"is a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else "does not exist"
    return f"cannot be read: {reason_of(error)}"
