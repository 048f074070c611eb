"""Images as rows: those of folders, and single ones. Their order is fixed when a job begins; new ones come last."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from covist.batch.columns import Look
from covist.batch.rows import Row
from covist.batch.source import Change, Source, Survey
from covist.errors import CovistError
from covist.opening import open_file, reason_of
from covist.outputs import replace_file
from covist.request.formats import has_image_ending


class Listed(NamedTuple):
    """An image as a roster lists it: its name, and size and time, which change with its content."""

    name: str
    size: int
    time: int


class Images(Source):
    """Every image of a folder and its subfolders, sorted by name, or of several paths.

    Its id is its path: relative to the folder if there is only one, else as given.
    """

    unit = "images"
    has_unique_ids = True

    def __init__(self, paths: Sequence[Path]):
        several = len(paths) > 1
        super().__init__(f"{paths[0]} and {len(paths) - 1} more" if several else str(paths[0]))
        is_folder = not several and paths[0].is_dir()
        self._top = (paths[0] if is_folder else Path()).absolute()
        self._paths = [Path()] if is_folder else list(dict.fromkeys(paths))
        self._roster: Path | None = None  # once it is fixed

    def survey(self) -> Survey:
        rows, seen, left_out = 0, sha256(), Counter[str]()
        for image in self._found(left_out):
            rows += 1
            seen.update(image.name.encode("utf-8", "surrogateescape") + b"\n")
        return Survey(rows, seen.hexdigest(), dict(left_out.most_common()))

    def look(self) -> Look:
        return Look(frozenset(("image",)), {"image": "text"})

    def check(self, prompt: str | None) -> None:
        if prompt is None:
            raise CovistError(f"{self.name}: images need a --prompt, the question to ask about each of them")

    def rows(self, start: int = 0) -> Iterator[Row]:
        listed = self._found(Counter()) if self._roster is None else _read(self._roster)
        for number, image in enumerate(islice(listed, start, None), start):
            readable = image.name.encode("utf-8", "backslashreplace").decode()  # for bytes that are not UTF-8
            yield Row(number, readable, {"image": image.name}, None, self._top, {"image": readable})

    def begin(self, roster: Path, survey: Survey) -> Survey:
        replace_file(roster, lambda file: _write(file, self._found(Counter())))
        self._roster = roster
        return replace(survey, rows=sum(1 for _ in _read(roster)))  # some may have come since they were counted

    def resume(self, roster: Path, rows: int, fingerprint: str) -> Change:
        known = {image.name: image for image in _read(roster)}
        found = {image.name: image for image in self._found(Counter())}
        kept = [image for name, image in known.items() if name in found]
        if not kept:
            raise CovistError(f"none of the {rows:,} images of the job is in {self.name}; choose another directory")
        added = [image for name, image in found.items() if name not in known]
        if added:
            replace_file(roster, lambda file: _write(file, [*known.values(), *added]))
        self._roster = roster
        changed = sum(image != found[image.name] for image in kept)
        return Change(len(known) + len(added) - rows, len(known) - len(kept), changed)

    def _found(self, left_out: Counter[str]) -> Iterator[Listed]:
        for path in self._paths:
            if (self._top / path).is_dir():
                yield from self._in(path, frozenset(), left_out)
            else:
                yield _listed(path, self._top)

    def _in(self, folder: Path, above: frozenset[tuple[int, int]], left_out: Counter[str]) -> Iterator[Listed]:
        """The images of a folder, in an order that depends only on names; reads one folder at a time.

        above: the folders that contain this one; a link back to one of them is not followed
        left_out: counts the endings of other files
        """
        try:
            status = os.stat(self._top / folder)
            if (here := (status.st_dev, status.st_ino)) in above:
                return
            with os.scandir(self._top / folder) as found:
                entries = sorted((entry.name, entry.is_dir()) for entry in found if not entry.name.startswith("."))
        except OSError as error:
            raise CovistError(f"cannot read {self._top / folder}: {reason_of(error)}") from None
        for name, is_folder in entries:
            if is_folder:
                yield from self._in(folder / name, above | {here}, left_out)
            elif has_image_ending(name):
                yield _listed(folder / name, self._top)
            else:
                left_out[Path(name).suffix.lower() or "without an ending"] += 1


def _listed(path: Path, top: Path) -> Listed:
    try:
        status = os.stat(top / path)
    except OSError:  # a link to nothing; its row will say so
        return Listed(path.as_posix(), 0, 0)
    return Listed(path.as_posix(), status.st_size, status.st_mtime_ns)


def _write(file: BinaryIO, images: Iterator[Listed] | list[Listed]) -> None:
    file.writelines(json.dumps(image).encode() + b"\n" for image in images)


def _read(roster: Path) -> Iterator[Listed]:
    with open_file(roster) as file:
        for line in file:
            yield Listed(*json.loads(line))
