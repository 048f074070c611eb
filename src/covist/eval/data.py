"""Your own data: a file with one question per line, as JSON.

    {"image": "cat.jpg", "question": "what is on the sofa?", "answer": "a cat"}
    {"images": ["a.jpg", "b.jpg"], "question": "which is newer?", "choices": ["the first", "the second"], "answer": "B"}
    {"video": "walk", "question": "what happens here?"}

Paths are relative to the folder of the file. Lines about the same images form one item: they are answered in one batch,
and the bootstrap draws them together.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from covist.errors import CovistError
from covist.eval.questions import AUTO, Question
from covist.eval.suite import Item, Suite, Visual
from covist.files import parse_json
from covist.opening import open_file, reason_of
from covist.request.images import check_image, load_image, refuse_url
from covist.request.videos import FOLDER_RATE, FRAMES, check_video, frame_files, load_video

KEYS = ("image", "images", "video", "videos", "question", "answer", "answers", "choices", "metric", "family", "id")
_PROBED_BYTES = 1 << 16  # of each file, for the checksum, together with its size


@dataclass(frozen=True)
class _Source:
    """The files of one item, images before videos as in the prompt, and the first line that names them."""

    images: tuple[Path, ...]
    videos: tuple[Path, ...]
    where: str

    @property
    def key(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        return self.images, self.videos

    def check(self) -> None:
        for path in self.images:
            check_image(path)
        for path in self.videos:
            check_video(path)

    def load(self, frames: int, rate: float) -> list[Visual]:
        try:
            return [*map(load_image, self.images), *(load_video(path, frames, rate) for path in self.videos)]
        except CovistError as error:
            raise CovistError(f"{self.where}: {error}") from error


def read_data(
    path: str | Path, metric: str = AUTO, *, frames: int = FRAMES, rate: float = FOLDER_RATE, name: str | None = None
) -> Suite:
    """Read your own questions from a file with one JSON object per line; docs/tuning.md describes the fields.

    metric: how to score answers of lines that name no metric: one of `covist.eval.metric_names()`, or "auto"
    frames: how many evenly spaced frames to take from a video
    rate: frames per second of a video that is a folder of images
    name: of the suite, in tables; by default the name of the file

    Every line and every file is checked at once: an error is reported with its line, before any work.

    >>> from pathlib import Path
    >>> covist.tiny.demo()[0].save("scene.png")
    >>> line = '{"image": "scene.png", "question": "where is the blue square?", "answer": "top left"}'
    >>> written = Path("mine.jsonl").write_text(line)
    >>> covist.eval.read_data("mine.jsonl").items()[0].questions[0].metric
    'exact'
    """
    path = Path(path)
    grouped: dict[Any, tuple[_Source, list[Question]]] = {}
    ignored: dict[str, None] = {}
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            where = f"{path} line {number}"
            source, question, unknown = _read(line, path.parent, where, metric)
            grouped.setdefault(source.key, (source, []))[1].append(question)
            ignored.update(dict.fromkeys(unknown))
    if not grouped:
        raise CovistError(f"{path} contains no questions")
    if ignored:
        warnings.warn(f"{path}: ignored fields: {', '.join(ignored)}", stacklevel=2)
    sources = [source for source, _ in grouped.values()]
    items = [
        Item(number, tuple(questions), partial(source.load, frames, rate))
        for number, (source, questions) in enumerate(grouped.values())
    ]
    identity = f"{frames}, {rate}, {_checksum(sources):08x}"
    return Suite.of(name or path.stem, items, unit=_unit(sources), identity=identity)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise CovistError(f"cannot read {path}: {reason_of(error)}") from None
    except UnicodeDecodeError:
        raise CovistError(f"cannot read {path}: it is not text in UTF-8") from None


def _read(line: str, folder: Path, where: str, metric: str) -> tuple[_Source, Question, list[str]]:
    """One line: what is shown, the question, and the names of ignored fields."""
    try:
        row = _parsed(line)
        if not isinstance(row, dict):
            raise CovistError(f"expected an object with the fields of a question, got {line[:40]!r}")
        source = _Source(_paths(row, "image", folder), _paths(row, "video", folder), where)
        if not source.images and not source.videos:
            raise CovistError("no image, images, video or videos: there is nothing to ask about")
        source.check()
        return source, _question(row, metric), [key for key in row if key not in KEYS]
    except CovistError as error:
        raise CovistError(f"{where}: {error}") from None


def _parsed(line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        raise CovistError(f"not a JSON object ({error})") from None


def _question(row: dict[str, Any], metric: str) -> Question:
    if "question" not in row:
        raise CovistError("no question")
    return Question(
        question=_field(row, "question", _text),
        answers=_several(row, "answer", _text),
        metric=_field(row, "metric", _text) if "metric" in row else metric,
        family=_field(row, "family", _text) if "family" in row else "",
        choices=() if row.get("choices") in (None, []) else _field(row, "choices", _texts),
    )


def _paths(row: dict[str, Any], kind: str, folder: Path) -> tuple[Path, ...]:
    names = _several(row, kind, _text)
    for name in names:
        refuse_url(name, kind)
    return tuple(folder / name for name in names)


def _several(row: dict[str, Any], name: str, convert: Callable[[Any], str]) -> tuple[str, ...]:
    """A field that may be single (`image`) or a list (`images`), but not both."""
    plural = f"{name}s"
    if row.get(name) is not None and row.get(plural) is not None:
        raise CovistError(f"both {name} and {plural}: give one of them")
    if row.get(plural) is not None:
        return _field(row, plural, _texts)
    return () if row.get(name) is None else (_field(row, name, convert),)


def _field(row: dict[str, Any], name: str, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(row[name])
    except TypeError as error:
        raise CovistError(f"{name} must be {error}, got {json.dumps(row[name])[:60]}") from None


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("text")
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise TypeError("a list of texts")
    return tuple(map(_text, value))


def _unit(sources: list[_Source]) -> str:
    """What to call an item: an image, a video, or an item if it is a mixture."""
    shapes = {(len(source.images), len(source.videos)) for source in sources}
    return "image" if shapes == {(1, 0)} else "video" if shapes == {(0, 1)} else "item"


def _checksum(sources: list[_Source]) -> int:
    """A checksum of names, sizes and beginnings of the files, which changes when a file does."""
    checksum = 0
    for source in sources:
        for path in (*source.images, *source.videos):
            for file in frame_files(path) if path.is_dir() else [path]:
                with open_file(file) as opened:
                    start = opened.read(_PROBED_BYTES)
                checksum = zlib.crc32(f"{file.name} {file.stat().st_size}".encode() + start, checksum)
    return checksum
