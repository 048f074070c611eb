"""The inputs of a job: a file of JSON lines, a Parquet file, or a folder of images. All are read as streams."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from covist.batch.rows import FIELDS, Row, bad_row, read_row
from covist.errors import CovistError
from covist.extras import require_extra
from covist.files import parse_json
from covist.request.images import has_image_ending

_PARQUET_ROWS = 64  # decoded at once: a row may contain images
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Survey:
    """The size and the identity of an input, found by reading it once from end to end."""

    rows: int
    fingerprint: str  # changes with the content, not with the path


class Source(ABC):
    """Rows in a fixed order, so that a number identifies a row.

    folder: the folder that the paths in its rows are relative to
    has_unique_ids: whether no two rows can have the same id
    """

    has_unique_ids = False

    def __init__(self, path: Path):
        self.path = path

    @property
    def folder(self) -> Path:
        return self.path.parent

    @abstractmethod
    def survey(self) -> Survey:
        """Count the rows, and fingerprint them."""

    @abstractmethod
    def rows(self, start: int = 0) -> Iterator[Row]:
        """The rows from number `start` on; earlier rows are not parsed."""


def open_source(path: str | Path) -> Source:
    """The source at a path; one that cannot be read is refused in one line."""
    path = Path(path)
    try:
        if path.is_dir():
            return ImageFolder(path)
        if path.exists() and not path.is_file():
            raise CovistError(f"cannot read {path}: a pipe can be read only once; save it as a file")
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
    except OSError as error:
        raise _unreadable(path, error) from None
    return ParquetFile(path) if is_parquet else JsonLines(path)


class JsonLines(Source):
    """A file with one JSON object per line; blank lines are skipped."""

    def survey(self) -> Survey:
        rows, seen = 0, sha256()
        for line in self._lines():
            rows += 1
            seen.update(line)
        return Survey(rows, seen.hexdigest())

    def rows(self, start: int = 0) -> Iterator[Row]:
        for number, line in enumerate(islice(self._lines(), start, None), start):
            yield _parsed(number, line)

    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                yield from (line for line in file if not line.isspace())
        except OSError as error:
            raise _unreadable(self.path, error) from None


class ParquetFile(Source):
    """A Parquet file with columns named like the fields; an image may also be bytes, or a struct of bytes and path."""

    def __init__(self, path: Path):
        require_extra(f"{path}, a Parquet file,", "parquet")
        super().__init__(path)

    def survey(self) -> Survey:
        seen = sha256()
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                seen.update(chunk)
        with self._open() as file:
            return Survey(file.metadata.num_rows, seen.hexdigest())

    def rows(self, start: int = 0) -> Iterator[Row]:
        from pyarrow import ArrowException

        with self._open() as file:
            first, groups = _groups_from(file.metadata, start)
            columns = [name for name in FIELDS if name in file.schema_arrow.names]
            number = first
            try:
                for batch in file.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=columns):
                    for values in batch.to_pylist():
                        if number >= start:
                            yield read_row(number, _without_json(values))
                        number += 1
            except (ArrowException, OSError) as error:
                raise _unreadable(self.path, error) from None

    def _open(self) -> Any:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile as Opened

        try:
            return Opened(self.path, memory_map=True)
        except (ArrowException, OSError) as error:
            raise _unreadable(self.path, error) from None


class ImageFolder(Source):
    """Every image of a folder and its subfolders, sorted by name; its id is its path relative to the folder."""

    has_unique_ids = True

    @property
    def folder(self) -> Path:
        return self.path

    def survey(self) -> Survey:
        rows, seen = 0, sha256()
        for name in self._names(self.path, frozenset()):
            rows += 1
            seen.update(name.encode("utf-8", "surrogateescape") + b"\n")
        return Survey(rows, seen.hexdigest())

    def rows(self, start: int = 0) -> Iterator[Row]:
        for number, name in enumerate(islice(self._names(self.path, frozenset()), start, None), start):
            # Bytes of a name that are not UTF-8 are escaped.
            yield Row(number, name.encode("utf-8", "backslashreplace").decode(), {"image": name})

    def _names(self, folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        """Paths relative to the top folder, in an order that depends only on names; reads one folder at a time.

        above: the folders that contain this one; a link back to one of them is not followed
        """
        try:
            status = os.stat(folder)
            if (here := (status.st_dev, status.st_ino)) in above:
                return
            with os.scandir(folder) as found:
                entries = sorted((entry.name, entry.is_dir()) for entry in found if not entry.name.startswith("."))
        except OSError as error:
            raise _unreadable(folder, error) from None
        for name, is_folder in entries:
            path = folder / name
            if is_folder:
                yield from self._names(path, above | {here})
            elif has_image_ending(name):
                yield path.relative_to(self.path).as_posix()


def _parsed(number: int, line: bytes) -> Row:
    try:
        return read_row(number, parse_json(line.decode("utf-8-sig" if number == 0 else "utf-8")))
    except ValueError as error:  # not UTF-8, not JSON, or a number with thousands of digits
        return bad_row(number, line, f"row {number + 1} is not a JSON object ({error})")


def _groups_from(metadata: Any, start: int) -> tuple[int, list[int]]:
    """The row groups with rows from `start` on, after the number of the first row in them."""
    first = group = 0
    while group < metadata.num_row_groups and first + metadata.row_group(group).num_rows <= start:
        first += metadata.row_group(group).num_rows
        group += 1
    return first, list(range(group, metadata.num_row_groups))


def _without_json(values: dict[str, Any]) -> dict[str, Any]:
    """Parse messages that are stored as JSON text, since their parts have no common type."""
    if isinstance(values.get("messages"), str):
        try:
            return {**values, "messages": parse_json(values["messages"])}
        except ValueError:
            return values  # reported when the row is answered
    return values


def _unreadable(path: Path, error: Exception) -> CovistError:
    reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
    return CovistError(f"cannot read {path}: {reason.lower()}")
