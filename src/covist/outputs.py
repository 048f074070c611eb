"""Where results are written. A path that cannot be written is refused before the work begins."""

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from covist.errors import CovistError

_LONGEST_NAME = 140  # bytes: encrypted file systems take 143 with the ending, others 255


def writable_file(path: str | Path, suffixes: tuple[str, ...] = ()) -> Path:
    """A file that can be created in an existing directory; a missing directory is an error and is not created."""
    path = Path(path)
    if suffixes and path.suffix.lower() not in suffixes:
        raise CovistError(f"cannot write {path}: its name must end in {' or '.join(suffixes)}")
    with _refused(path):  # a name that is too long
        if path.is_dir():
            raise CovistError(f"cannot write {path}: it is a directory")
        if not path.parent.is_dir():
            raise CovistError(f"cannot write {path}: there is no directory {path.parent}")
    _try_out(path.parent)
    return path


def writable_directory(path: str | Path) -> Path:
    """A directory in which files can be created; created if missing, but not the directories above it."""
    path = Path(path)
    with _refused(path):
        if not path.parent.is_dir():
            raise CovistError(f"cannot write to {path}: there is no directory {path.parent}")
        path.mkdir(exist_ok=True)
    _try_out(path)
    return path


def short_name(name: str) -> str:
    """A file name that every file system takes: a longer one is cut, and ends in a hash of the whole.

    >>> short_name("covist-fixed@64"), len(short_name("x" * 1000))
    ('covist-fixed@64', 140)
    """
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:16]
    return f"{name.encode()[: _LONGEST_NAME - 17].decode(errors='ignore')}-{digest}"


def lock_directory(directory: Path, command: str, name: str = "lock") -> FileLock:
    """Keep other processes out of a directory until `release()`, or until this process ends for whatever reason.

    command: named in the refusal if another process has the directory
    name: the file in the directory that is locked; it stays there, because deleting it could let two processes in
    """
    lock = FileLock(directory / name, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        advice = "wait until it ends, or choose another directory"
        raise CovistError(f"another {command} is running in {directory}; {advice}") from None
    return lock


def _try_out(directory: Path) -> None:
    with _refused(directory), tempfile.TemporaryFile(dir=directory):
        pass


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CovistError(f"cannot write to {path}: {(error.strerror or 'not a directory').lower()}") from None


FREE_SPACE = "; free some space, then run the same command again"


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Report errors of the disk in one line; what was finished before is kept."""
    try:
        yield
    except OSError as error:
        advice = FREE_SPACE if error.errno == errno.ENOSPC else ""
        reason = (error.strerror or str(error)).lower()
        raise CovistError(f"cannot write to {directory}: {reason}{advice}") from None


def replace_file(path: Path, write: Callable[[BinaryIO], object], temporary: Path | None = None) -> None:
    """Replace a file atomically, even in a power cut: the data reaches the disk before the name does.

    A link stays a link to the file. What is there but is no file, such as a device, is written to as it is.

    temporary: written first, on the same disk; by default next to the file
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with writing(path), path.open("wb") as device:
            write(device)
        return
    temporary = path.with_name(f".{short_name(path.name)}.tmp") if temporary is None else temporary
    with writing(path.parent):
        try:
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _flush_names(path.parent)


def back_up(path: Path) -> Path | None:
    """Copy a file that is about to be replaced to the first free name (`covist.json.1`); None if there is no file."""
    if not path.is_file():
        return None
    names = (path.with_name(f"{path.name}.{number}") for number in count(1))
    copy = next(name for name in names if not name.exists())
    replace_file(copy, lambda file: file.write(path.read_bytes()))
    return copy


def _flush_names(directory: Path) -> None:
    """Flush the names of a directory to the disk."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    replace_file(path, lambda file: file.write(text.encode()))


def write_json(path: Path, payload: Any) -> None:
    write_text(path, json.dumps(payload, indent=2) + "\n")


def journal_lines(path: Path) -> list[bytes]:
    """The lines of a file that grows line by line; an incomplete last one, left by a killed process, is removed."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(path, len(whole))
    return whole.splitlines()
