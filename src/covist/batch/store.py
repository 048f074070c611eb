"""The directory of a job. Parts appear whole or not at all; what is finished survives whatever kills the process.

DIR/part-000000.parquet      the answers to the first rows of the input; a part that is there is finished
DIR/_manifest.json           what the answers hang on
DIR/_work/part-000001.jsonl  answers to rows whose part is not complete yet
DIR/_work/ids.sqlite         which rows have which ids; made again from the input if it is lost

Names that begin with "_" are left alone by readers of Parquet directories.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from covist.batch.answers import FORMATS, Answer, as_line, from_lines
from covist.errors import CovistError
from covist.outputs import writable_directory


class Store:
    """Parts, journals and the manifest; one process at a time may hold it."""

    def __init__(self, directory: str | Path, format: str = "parquet"):
        self.directory = writable_directory(directory)
        self._work = self.directory / "_work"
        self._format = FORMATS[format]
        with self.writing():
            self._work.mkdir(exist_ok=True)
            self._lock = _locked(self._work / "lock", self.directory)

    @property
    def ids_path(self) -> Path:
        return self._work / "ids.sqlite"

    def has_part(self, index: int) -> bool:
        return self._part(index).exists()

    def read_part(self, index: int) -> list[Answer]:
        try:
            return self._format.read(self._part(index))
        except (OSError, ValueError, TypeError) as error:  # pyarrow's errors are of these kinds
            problem = f"{self._part(index)} is damaged ({str(error).splitlines()[0]})"
            raise CovistError(f"{problem}; delete it and run the same command again") from None

    def write_part(self, index: int, answers: Sequence[Answer]) -> None:
        """Let a part appear, in place of what was known of it before."""
        self._replace(self._part(index), lambda file: self._format.write(file, answers))
        self._journal(index).unlink(missing_ok=True)

    def note(self, index: int, answers: Sequence[Answer]) -> None:
        """Keep answers of a part that is not complete."""
        with self.writing(), self._journal(index).open("ab") as file:
            file.write(b"".join(map(as_line, answers)))

    def recover(self, index: int) -> list[Answer]:
        """The answers that were kept; a last line that was cut off when the process was killed is taken out."""
        path = self._journal(index)
        if not path.exists():
            return []
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            os.truncate(path, len(whole))
        return from_lines(whole.splitlines())

    def read_manifest(self) -> dict[str, Any] | None:
        path = self.directory / "_manifest.json"
        if not path.exists():
            if next(self.directory.glob("part-*"), None) is not None:
                raise CovistError(f"{self.directory} holds parts without a manifest; choose another directory")
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise CovistError(f"{path} is damaged; choose another directory") from None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        text = json.dumps(manifest, indent=2) + "\n"
        self._replace(self.directory / "_manifest.json", lambda file: file.write(text.encode()))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What a disk refuses is one line; what was finished before stays."""
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            is_full = getattr(error, "errno", None) == errno.ENOSPC or "disk is full" in str(error)
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            advice = "; free some, then the same command goes on" if is_full else ""
            raise CovistError(f"cannot write to {self.directory}: {reason}{advice}") from None

    def close(self) -> None:
        os.close(self._lock)

    def _part(self, index: int) -> Path:
        return self.directory / f"part-{index:06d}.{self._format.ending}"

    def _journal(self, index: int) -> Path:
        return self._work / f"part-{index:06d}.jsonl"

    def _replace(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """A whole file under its name, also after a power cut: the data is on the disk before the name is."""
        temporary = self._work / f"{path.name}.tmp"
        with self.writing():
            try:
                with temporary.open("wb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            _settle(path.parent)


def _settle(directory: Path) -> None:
    """Bring the names of a directory to the disk."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _locked(path: Path, directory: Path) -> int:
    """A lock that ends with the process, however that ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows
        pass
    except OSError:
        os.close(handle)
        raise CovistError(f"another covist batch is at work in {directory}; let it end, or choose another") from None
    return handle
