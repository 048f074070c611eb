"""Which source a path is: recognised by its content before a model is loaded, or refused."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path

from covist.batch.folders import Images
from covist.batch.source import Source
from covist.batch.tables import Chain, CsvTable, JsonLines, JsonList, ParquetFile, Table, read_heading
from covist.errors import CovistError
from covist.opening import open_file
from covist.request.formats import has_image_ending, other_format
from covist.request.images import check_image

STDIN = "-"
_PROBED = 1 << 16  # bytes at the start of a file that decide what it is
_READ = "JSON lines, a JSON list, CSV with a first line that names image or prompt, Parquet, images, or folders of them"

Paths = str | Path | Sequence[str | Path]


@contextmanager
def opened(inputs: Paths) -> Iterator[Source]:
    """The source at some paths; standard input is kept in a temporary file until the job ends."""
    if not _is_stdin(inputs):
        yield open_source(inputs)
        return
    with tempfile.TemporaryDirectory(prefix="covist-") as folder:
        path = Path(folder) / "standard-input"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        table = _table(path, Path(), "standard input")
        if table is None:
            raise CovistError(f"standard input holds no rows that covist batch reads: {_READ}")
        yield table


def _is_stdin(inputs: Paths) -> bool:
    given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    if len(given) > 1 and STDIN in map(str, given):
        raise CovistError("- is standard input, and cannot be read together with files")
    return [str(path) for path in given] == [STDIN]


def open_source(inputs: Paths) -> Source:
    """The source at one or more paths or patterns; one that cannot be read is refused in one line."""
    paths = [path for given in ([inputs] if isinstance(inputs, str | Path) else inputs) for path in _matching(given)]
    if len(paths) == 1:
        return _single(paths[0])
    images = [path for path in paths if _is_directory(path) or has_image_ending(path.name)]
    if images and len(images) < len(paths):
        other = next(path for path in paths if path not in images)
        raise CovistError(f"{images[0]} is an image or a folder, {other} is not: give one kind of them")
    return Images(paths) if images else Chain([_rows_of(path) for path in paths])


def _matching(given: str | Path) -> list[Path]:
    if os.path.lexists(given) or not set("*?[").intersection(str(given)):
        return [Path(given)]
    found = sorted(glob(str(given), recursive=True))
    if not found:
        raise CovistError(f"no file matches {given}")
    return [Path(path) for path in found]


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)


def _single(path: Path) -> Source:
    if _is_directory(path):
        return Images([path])
    table = _table(path)
    if table is not None:
        return table
    if has_image_ending(path.name) or other_format(_start(path)) or _is_image(path):
        check_image(path)  # its own words, before a model is loaded
        return Images([path])
    raise _unknown(path)


def _rows_of(path: Path) -> Table:
    table = _table(path)
    if table is None:
        raise _unknown(path)
    return table


def _table(path: Path, folder: Path | None = None, name: str | None = None) -> Table | None:
    """The table that a file holds by its first bytes; None if it holds none."""
    start = _start(path)
    if start.startswith(b"PAR1"):
        return ParquetFile(path, folder, name)
    text = _text(start)
    if text is None or other_format(start):
        return None
    first, _, more = text.lstrip().partition("\n")
    if first.startswith("[") or (first.strip() == "{" and not more.lstrip().startswith("{")):
        return JsonList(path, folder, name)
    if not first or first.startswith("{") or any(line.startswith("{") for line in more.splitlines()):
        return JsonLines(path, folder, name)
    return CsvTable(path, folder, name) if read_heading(first)[0] else None


def _text(start: bytes) -> str | None:
    """The first bytes of a file as text, of which the last letter may be cut; None if they are none."""
    is_json = start.removeprefix(BOM_UTF8).lstrip().startswith(b"{")  # a row that is not text is the row's own error
    try:
        text = getincrementaldecoder("utf-8-sig")("ignore" if is_json else "strict").decode(start)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text and not is_json else text


def _start(path: Path) -> bytes:
    if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):
        raise CovistError(f"input {path} is a pipe, which can be read only once; give - and pipe the rows in")
    with open_file(path, "input") as file:
        return file.read(_PROBED)


def _is_image(path: Path) -> bool:
    try:
        check_image(path)
    except CovistError:
        return False
    return True


def _unknown(path: Path) -> CovistError:
    return CovistError(f"input {path} is nothing that covist batch reads: {_READ}")
