"""Answers, and the files that hold them: every part has the same columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO


@dataclass(frozen=True)
class RowAnswer:
    """The result of one row.

    finish_reason: "stop" if the model ended its answer, "length" if it was cut off
    tokens_before, tokens_after: visual tokens of all its images; after compression those in the cache, averaged over
        the decoder's layers
    seconds: the time of its batch, divided by the rows of the batch
    error: why there is no answer
    """

    id: str
    answer: str | None = None
    finish_reason: str | None = None
    tokens_before: int | None = None
    tokens_after: float | None = None
    seconds: float | None = None
    error: str | None = None


COLUMNS = tuple(one.name for one in fields(RowAnswer))


class ParquetPart:
    """Parts as Parquet."""

    ending = "parquet"

    @staticmethod
    def write(file: BinaryIO, answers: Sequence[RowAnswer]) -> None:
        import pyarrow
        from pyarrow import parquet

        types = (*[pyarrow.string()] * 3, pyarrow.int64(), pyarrow.float64(), pyarrow.float64(), pyarrow.string())
        columns = [[getattr(answer, name) for answer in answers] for name in COLUMNS]
        arrays = [pyarrow.array(*column) for column in zip(columns, types, strict=True)]
        parquet.write_table(pyarrow.table(arrays, names=COLUMNS), file)

    @staticmethod
    def read(path: Path) -> list[RowAnswer]:
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            return [RowAnswer(**values) for values in file.read(list(COLUMNS)).to_pylist()]


class JsonlPart:
    """Parts as JSON lines."""

    ending = "jsonl"

    @staticmethod
    def write(file: BinaryIO, answers: Sequence[RowAnswer]) -> None:
        file.writelines(map(as_line, answers))

    @staticmethod
    def read(path: Path) -> list[RowAnswer]:
        return from_lines(path.read_bytes().splitlines())


FORMATS: dict[str, Any] = {one.ending: one for one in (ParquetPart, JsonlPart)}


def as_line(answer: RowAnswer) -> bytes:
    return json.dumps(vars(answer), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def from_lines(lines: Iterable[bytes]) -> list[RowAnswer]:
    return [RowAnswer(**json.loads(line)) for line in lines]
