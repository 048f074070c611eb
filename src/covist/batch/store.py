"""The directory of a job. A part is written in full or not at all; finished answers survive a killed process.

DIR/part-000000.parquet      the answers to the first rows of the input; a part that exists is finished
DIR/_manifest.json           what the answers depend on
DIR/_images.jsonl            the images of a folder in the order of the job, with those that came later at its end
DIR/_work/part-000001.jsonl  answers to rows whose part is not complete yet
DIR/_work/ids.sqlite         which row owns which id; rebuilt from the input if it is lost

Readers of Parquet directories ignore names that begin with "_".
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from covist.batch.answers import FORMATS, ParquetPart, PartRow, RowAnswer, as_line, from_lines
from covist.errors import CovistError
from covist.extras import require_extra
from covist.files import parse_json
from covist.outputs import FREE_SPACE, journal_lines, lock_directory, replace_file, writable_directory, writing

MANIFEST = "_manifest.json"


def is_begun(directory: str | Path) -> bool:
    """Whether a directory holds a job."""
    return (Path(directory) / MANIFEST).exists()


class Store:
    """Parts, journals and the manifest of a directory; one process at a time may open it."""

    def __init__(self, directory: str | Path, format: str = "parquet"):
        if format == ParquetPart.ending:
            require_extra("--format parquet, the default,", "parquet")
        self.directory = writable_directory(directory)
        self._work = self.directory / "_work"
        self._format = FORMATS[format]
        with self.writing():
            self._work.mkdir(exist_ok=True)
            self._lock = lock_directory(self.directory, "covist batch", "_work/lock")

    @property
    def ids_path(self) -> Path:
        return self._work / "ids.sqlite"

    @property
    def roster_path(self) -> Path:
        return self.directory / "_images.jsonl"

    def has_part(self, index: int) -> bool:
        return self._part(index).exists()

    def read_part(self, index: int) -> list[RowAnswer]:
        try:
            return self._format.read(self._part(index))
        except (OSError, ValueError, TypeError) as error:  # pyarrow's errors are of these kinds
            problem = f"{self._part(index)} is damaged ({str(error).splitlines()[0]})"
            raise CovistError(f"{problem}; delete it and run the same command again") from None

    def write_part(self, index: int, rows: Sequence[PartRow], columns: dict[str, str]) -> None:
        """Write a part and delete its journal."""
        self._replace(self._part(index), lambda file: self._format.write(file, rows, columns))
        self._journal(index).unlink(missing_ok=True)

    def note(self, index: int, answers: Sequence[RowAnswer]) -> None:
        """Add answers to the journal of a part that is not complete."""
        with self.writing(), self._journal(index).open("ab") as file:
            file.write(b"".join(map(as_line, answers)))

    def recover(self, index: int) -> list[RowAnswer]:
        """The answers in a journal; an incomplete last line, left by a killed process, is removed.

        A power cut may also damage earlier lines: their rows are answered again.
        """
        path = self._journal(index)
        if not path.exists():
            return []
        found = []
        for line in journal_lines(path):
            with suppress(ValueError, TypeError):
                found += from_lines([line])
        return found

    def begin(self, manifest: dict[str, Any]) -> None:
        """Begin a new job: files in `_work` without a manifest belong to a job that was deleted by hand."""
        with self.writing():
            for path in (*self._work.glob("part-*.jsonl"), *self._work.glob("ids.sqlite*")):
                path.unlink()
        self.write_manifest(manifest)

    def read_manifest(self) -> dict[str, Any] | None:
        path = self.directory / MANIFEST
        if not path.exists():
            if next(self.directory.glob("part-*"), None) is not None:
                raise CovistError(f"{self.directory} holds parts without a manifest; choose another directory")
            return None
        try:
            manifest = parse_json(path.read_text(encoding="utf-8"))
        except ValueError:
            manifest = None
        if not isinstance(manifest, dict):
            raise CovistError(f"{path} is damaged; choose another directory")
        return manifest

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        text = json.dumps(manifest, indent=2) + "\n"
        self._replace(self.directory / MANIFEST, lambda file: file.write(text.encode()))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Report errors of the disk in one line; what was finished before is kept."""
        try:
            with writing(self.directory):
                yield
        except sqlite3.DatabaseError as error:
            advice = FREE_SPACE if "disk is full" in str(error) else ""
            if not isinstance(error, sqlite3.OperationalError):
                advice = f"; delete {self.ids_path}, then run the same command again"  # it is rebuilt
            raise CovistError(f"cannot write to {self.directory}: {str(error).lower()}{advice}") from None

    def close(self) -> None:
        self._lock.release()

    def _part(self, index: int) -> Path:
        return self.directory / f"part-{index:06d}.{self._format.ending}"

    def _journal(self, index: int) -> Path:
        return self._work / f"part-{index:06d}.jsonl"

    def _replace(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """Readers of the directory never see the file that is written first."""
        replace_file(path, write, self._work / f"{path.name}.tmp")
