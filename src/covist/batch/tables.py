"""Files of rows: JSON lines, a JSON list, CSV, Parquet, and several files one after the other."""

from __future__ import annotations

import csv
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from covist.batch.columns import Kinds, Look
from covist.batch.rows import FIELDS, Row, bad_row, read_row
from covist.batch.source import Change, Source, Survey
from covist.errors import CovistError
from covist.extras import require_extra
from covist.files import parse_json
from covist.opening import open_file, reason_of

_PARQUET_ROWS = 64  # decoded at once: a row may contain images
_CHUNK = 1 << 20


class Table(Source):
    """Rows that a file lists.

    path: of the file
    folder: what the paths in its rows are relative to; the folder of the file unless the file stands for another one
    """

    def __init__(self, path: Path, folder: Path | None = None, name: str | None = None):
        super().__init__(name or str(path))
        self.path, self.folder = path, (path.parent if folder is None else folder).absolute()

    @abstractmethod
    def raw(self) -> Iterator[bytes]:
        """Bytes for each row that differ if the row does."""

    def survey(self) -> Survey:
        rows, fingerprint, _ = self._surveyed(0)
        return Survey(rows, fingerprint)

    def look(self) -> Look:
        kinds, fields = Kinds(), dict[str, None]()
        for row in self.rows():
            kinds.add(row.given)
            fields.update(dict.fromkeys([*row.given, *row.content.keys() & set(FIELDS)]))
        return Look(frozenset(fields), kinds.found)

    def resume(self, roster: Path, rows: int, fingerprint: str) -> Change:
        now, _, beginning = self._surveyed(rows)
        if now < rows:
            raise CovistError(
                f"{self.name} has fewer rows than when the job began ({rows:,} then, {now:,} now); "
                "choose another directory"
            )
        if beginning != fingerprint:
            raise CovistError(
                f"the first {rows:,} rows of {self.name} are not those of the job; choose another directory"
            )
        return Change(added=now - rows)

    def _surveyed(self, known: int) -> tuple[int, str, str]:
        """The number of rows, and the fingerprints of all rows and of the first `known` ones."""
        rows, seen = 0, sha256()
        beginning = seen.hexdigest()
        for raw in self.raw():
            rows += 1
            seen.update(raw + b"\n")
            if rows == known:
                beginning = seen.hexdigest()
        return rows, seen.hexdigest(), beginning

    @contextmanager
    def _reading(self, kind: type[Exception] = OSError) -> Iterator[None]:
        """Report in one line what is wrong with the file, in errors of the system and of one more kind."""
        try:
            yield
        except CovistError:
            raise
        except UnicodeDecodeError:
            raise CovistError(f"cannot read {self.name}: it is not text in UTF-8") from None
        except (OSError, kind) as error:
            raise CovistError(f"cannot read {self.name}: {reason_of(error)}") from None


class JsonLines(Table):
    """A file with one JSON object per line; blank lines are skipped."""

    def raw(self) -> Iterator[bytes]:
        with self._reading(), open_file(self.path) as file:
            yield from (line.rstrip(b"\r\n") for line in file if not line.isspace())

    def rows(self, start: int = 0) -> Iterator[Row]:
        for number, line in enumerate(islice(self.raw(), start, None), start):
            yield self._parsed(number, line)

    def _parsed(self, number: int, line: bytes) -> Row:
        try:
            values = parse_json(line.decode("utf-8-sig" if number == 0 else "utf-8"))
        except ValueError as error:  # not UTF-8, not JSON, or a number with thousands of digits
            return bad_row(number, line, f"row {number + 1} is not a JSON object ({error})")
        return read_row(number, values, self.folder)


class JsonList(Table):
    """A file with a JSON list of objects, or with one object; it is held in memory while it is read."""

    def raw(self) -> Iterator[bytes]:
        return (json.dumps(values, sort_keys=True).encode() for values in self._values())

    def rows(self, start: int = 0) -> Iterator[Row]:
        for number, values in enumerate(self._values()[start:], start):
            yield read_row(number, values, self.folder)

    def _values(self) -> list[Any]:
        with self._reading(ValueError), open_file(self.path) as file:
            found = parse_json(file.read().decode("utf-8-sig"))
        return found if isinstance(found, list) else [found]


class CsvTable(Table):
    """A CSV file whose first line names the columns; the delimiter is that of the first line."""

    def raw(self) -> Iterator[bytes]:
        return (json.dumps(cells).encode() for cells in self._cells())

    def rows(self, start: int = 0) -> Iterator[Row]:
        names, _ = self._heading
        for number, cells in enumerate(islice(self._cells(), start, None), start):
            if len(cells) > len(names):
                problem = f"row {number + 1} has {len(cells)} cells, more than the first line names"
                yield bad_row(number, json.dumps(cells).encode(), problem)
                continue
            values = {name: cell for name, cell in zip(names, cells, strict=False) if name and cell}
            yield read_row(number, _without_json(values), self.folder)

    def look(self) -> Look:
        names = [name for name in self._heading[0] if name and name != "id"]
        return Look(frozenset(names), {name: "text" for name in names if name != "messages"})

    @cached_property
    def _heading(self) -> tuple[list[str], str]:
        with self._reading(csv.Error), open_file(self.path) as file:
            return read_heading(TextIOWrapper(file, "utf-8-sig", newline="").readline())

    def _cells(self) -> Iterator[list[str]]:
        _, delimiter = self._heading
        with self._reading(csv.Error), open_file(self.path) as file:
            lines = csv.reader(TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=delimiter)
            yield from islice((cells for cells in lines if any(cells)), 1, None)


class ParquetFile(Table):
    """A Parquet file with columns named like the fields; an image may also be bytes, or a struct of bytes and path."""

    def __init__(self, path: Path, folder: Path | None = None, name: str | None = None):
        require_extra(f"{path}, a Parquet file,", "parquet")
        super().__init__(path, folder, name)

    def raw(self) -> Iterator[bytes]:
        whole = sha256()
        with self._reading(), open_file(self.path) as file:
            while chunk := file.read(_CHUNK):
                whole.update(chunk)
        with self._open() as opened:
            rows = opened.metadata.num_rows
        return (b"%s %d" % (whole.digest(), number) for number in range(rows))

    def look(self) -> Look:
        with self._open() as file:
            schema = file.schema_arrow
        own = {"image": "text", "images": "text"}
        kinds = {one.name: own.get(one.name) or _arrow_kind(one.type) for one in schema}
        columns = {name: kind for name, kind in kinds.items() if kind and name not in ("id", "messages")}
        return Look(frozenset(schema.names) - {"id"}, columns)

    def rows(self, start: int = 0) -> Iterator[Row]:
        from pyarrow import ArrowException

        wanted = [*FIELDS, *self.look().columns]
        with self._open() as file, self._reading(ArrowException):
            number, groups = _groups_from(file.metadata, start)
            columns = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(_PARQUET_ROWS, row_groups=groups, columns=columns):
                for values in batch.to_pylist():
                    if number >= start:
                        yield read_row(number, _without_json(values), self.folder)
                    number += 1

    def _open(self) -> Any:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile as Opened

        with self._reading(ArrowException):
            return Opened(self.path, memory_map=True)


class Chain(Table):
    """Several files, one after the other; a file that is added after the last one adds its rows."""

    def __init__(self, tables: Sequence[Table]):
        Source.__init__(self, f"{tables[0].name} and {len(tables) - 1} more")
        self._tables = tables

    def raw(self) -> Iterator[bytes]:
        for table in self._tables:
            yield from table.raw()

    def look(self) -> Look:
        kinds, looks = Kinds(), [table.look() for table in self._tables]
        for one in looks:
            kinds.join(one.columns)
        return Look(frozenset().union(*(one.fields for one in looks)), kinds.found)

    def rows(self, start: int = 0) -> Iterator[Row]:
        first = 0
        for table, count in zip(self._tables, self._counts, strict=True):
            skipped = max(0, start - first)
            for row in islice(table.rows(skipped), max(0, count - skipped)) if skipped < count else ():
                yield replace(row, number=first + row.number)
            first += count

    @cached_property
    def _counts(self) -> list[int]:
        return [table.survey().rows for table in self._tables]


def read_heading(line: str) -> tuple[list[str], str]:
    """The columns that the first line of a CSV file names, and its delimiter; none if it names no field of a row.

    >>> read_heading("Image; Question; label")
    (['image', 'question', 'label'], ';')
    """
    known = {*FIELDS, "question"}
    for delimiter in ",;\t":
        cells = [cell.strip() for row in csv.reader([line], delimiter=delimiter) for cell in row]
        names = [cell.lower() if cell.lower() in known else cell for cell in cells]
        if known.intersection(names):
            return names, delimiter
    return [], ","


def _groups_from(metadata: Any, start: int) -> tuple[int, list[int]]:
    """The row groups with rows from `start` on, after the number of the first row in them."""
    first = group = 0
    while group < metadata.num_row_groups and first + metadata.row_group(group).num_rows <= start:
        first += metadata.row_group(group).num_rows
        group += 1
    return first, list(range(group, metadata.num_row_groups))


def _arrow_kind(kind: Any) -> str | None:
    """The kind of a column of Parquet; None for one that holds bytes."""
    from pyarrow import types

    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return None
    if any(_arrow_kind(one) is None for one in inner):
        return None
    kinds: dict[str, Callable[[Any], bool]] = {
        "boolean": types.is_boolean,
        "integer": lambda one: types.is_integer(one) and not types.is_uint64(one),
        "number": types.is_floating,
    }
    return next((name for name, holds in kinds.items() if holds(kind)), "text")


def _without_json(values: dict[str, Any]) -> dict[str, Any]:
    """Parse messages and lists of images that are stored as JSON text, since a cell has one type."""
    for name in ("messages", "images"):
        if isinstance(values.get(name), str):
            try:
                values = {**values, name: parse_json(values[name])}
            except ValueError:
                continue  # reported when the row is answered
    return values
