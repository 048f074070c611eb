"""Answers, and the files that hold them: every part has the same columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from covist.batch.columns import fitted, output_names


@dataclass(frozen=True)
class RowAnswer:
    """The result of one row.

    finish_reason: "stop" if the model ended its answer, "length" if it was cut off
    tokens_before, tokens_after: visual tokens of all its images; after compression those in the cache, averaged over
        the decoder's layers
    seconds: the time of its batch, divided by the rows of the batch
    error: why there is no answer
    capped: whether `auto` reached its maximum on one of its images without covering enough
    """

    id: str
    answer: str | None = None
    finish_reason: str | None = None
    tokens_before: int | None = None
    tokens_after: float | None = None
    seconds: float | None = None
    error: str | None = None
    capped: bool | None = None


COLUMNS = tuple(one.name for one in fields(RowAnswer))
ROW = "row"
"""The column that says which row of the input an answer belongs to, counted from 1."""


@dataclass(frozen=True)
class PartRow:
    """A row of a part: an answer, the number of its row in the input, and the fields that it repeats."""

    answer: RowAnswer
    row: int | None = None
    given: dict[str, Any] = field(default_factory=dict)


class ParquetPart:
    """Parts as Parquet."""

    ending = "parquet"

    @staticmethod
    def write(file: BinaryIO, rows: Sequence[PartRow], columns: dict[str, str]) -> None:
        import pyarrow
        from pyarrow import parquet

        kinds = {
            "text": pyarrow.string(),
            "integer": pyarrow.int64(),
            "number": pyarrow.float64(),
            "boolean": pyarrow.bool_(),
        }
        own = ("text", "text", "text", "integer", "number", "number", "text", "boolean")
        arrays = {
            name: pyarrow.array([getattr(one.answer, name) for one in rows], kinds[kind])
            for name, kind in zip(COLUMNS, own, strict=True)
        }
        arrays[ROW] = pyarrow.array([one.row for one in rows], kinds["integer"])
        for name, shown in output_names(columns, arrays).items():
            values = [fitted(one.given.get(name), columns[name]) for one in rows]
            arrays[shown] = pyarrow.array(values, kinds[columns[name]])
        parquet.write_table(pyarrow.table(arrays), file)

    @staticmethod
    def read(path: Path) -> list[RowAnswer]:
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            return [RowAnswer(**values) for values in file.read(list(COLUMNS)).to_pylist()]


class JsonlPart:
    """Parts as JSON lines."""

    ending = "jsonl"

    @staticmethod
    def write(file: BinaryIO, rows: Sequence[PartRow], columns: dict[str, str]) -> None:
        names = output_names(columns, (*COLUMNS, ROW))
        for one in rows:
            given = {shown: one.given.get(name) for name, shown in names.items()}
            file.write(_line({**vars(one.answer), ROW: one.row, **given}))

    @staticmethod
    def read(path: Path) -> list[RowAnswer]:
        return from_lines(path.read_bytes().splitlines())


FORMATS: dict[str, Any] = {one.ending: one for one in (ParquetPart, JsonlPart)}


def as_line(answer: RowAnswer) -> bytes:
    return _line(vars(answer))


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace") + b"\n"


def from_lines(lines: Iterable[bytes]) -> list[RowAnswer]:
    found = map(json.loads, lines)
    return [RowAnswer(**{name: values[name] for name in COLUMNS if name in values}) for values in found]
