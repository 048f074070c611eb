"""Which row owns an id: the first that has it. The index is a file, so memory stays bounded.

The file can be deleted: it is rebuilt from the input.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from covist.batch.rows import Row

_KEY_BYTES = 16
_TABLES = """
CREATE TABLE IF NOT EXISTS ids (key BLOB PRIMARY KEY, number INTEGER, digest BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS known (one INTEGER PRIMARY KEY CHECK (one = 1), rows INTEGER);
INSERT OR IGNORE INTO known VALUES (1, 0);
"""


class Ids:
    """Remembers the owner of every id; rows must be passed in the order of the input."""

    def __init__(self, path: Path):
        self._path = path
        try:
            self._connect()
        except sqlite3.DatabaseError:  # incomplete after a crash of the machine
            self.forget()

    def _connect(self) -> None:
        self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("PRAGMA synchronous=NORMAL")
        self._file.executescript(_TABLES)

    def forget(self) -> None:
        """Start again with an empty file."""
        with suppress(AttributeError, sqlite3.Error):
            self._file.close()
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._path}{ending}").unlink(missing_ok=True)
        self._connect()

    @property
    def known(self) -> int:
        """How many rows have been passed: all before this number."""
        return self._file.execute("SELECT rows FROM known").fetchone()[0]

    def own(self, rows: Iterable[Row]) -> list[Row]:
        """The rows to answer: each id once, for the first row that has it.

        A later row with the same id and the same content is dropped. One with other content becomes an error, under a
        new id that includes its row number.
        """
        with self._file:  # one transaction
            self._file.execute("BEGIN")
            kept = []
            last = -1
            for row in rows:
                last = row.number
                owner = self._owner(row)
                if owner is not None:
                    kept.append(owner)
            self._file.execute("UPDATE known SET rows = max(rows, ?)", (last + 1,))
        return kept

    def _owner(self, row: Row) -> Row | None:
        number, digest = self._claim(row)
        if number == row.number:
            return row
        if digest == row.digest[:_KEY_BYTES]:
            return None
        problem = f"id {row.id!r} belongs to row {number + 1}, which differs"
        return self._owner(replace(row, id=f"{row.id}#{row.number + 1}", error=problem))

    def _claim(self, row: Row) -> tuple[int, bytes]:
        """The number and the digest of the row that owns an id: this row, if no earlier one has the id."""
        key = sha256(row.id.encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES]
        entry = (key, row.number, row.digest[:_KEY_BYTES])
        self._file.execute("INSERT OR IGNORE INTO ids VALUES (?, ?, ?)", entry)
        return self._file.execute("SELECT number, digest FROM ids WHERE key = ?", (key,)).fetchone()

    def close(self) -> None:
        self._file.close()
