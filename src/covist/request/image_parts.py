"""Metadata that cost Pillow far more than their bytes, found before it reads them.

Pillow reads metadata in Python, piece by piece. A chunk of 12 bytes takes microseconds, one with a kilobyte of
compressed text milliseconds, and up to Pillow 12 tags that share their bytes take gigabytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from PIL.JpegImagePlugin import MARKER

from covist.errors import CovistError

MAX_STEPS = 10_000
"""Files of cameras, scanners and editors take less than a tenth of it. Ten thousand take Pillow about 25 ms."""
HEAVY = 100
"""Steps of a part that can take milliseconds, whatever its size."""
MAX_OVERLAP = 4
"""How many times its own length the tags of metadata may have together; those of cameras have less than once."""
_PIXELS, _SMALL = (b"IDAT", b"fdAT"), 1024
"""Chunks of a PNG file that hold pixels are as many as the image needs, unless they are small."""
_COMPRESSED = (b"iCCP", b"zTXt", b"iTXt")
_SCAN = b"\xda"
_UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
"""Bytes of a value by the type of its tag."""


class HeaderFile:
    """A file whose header may be read in `MAX_STEPS` pieces. After `finish`, the rest may be read in any number."""

    def __init__(self, file: BinaryIO, name: str):
        self._file, self._name, self._left = file, name, float(MAX_STEPS)

    def read(self, size: int = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _too_much(self._name)
        return self._file.read(size)

    def finish(self) -> None:
        self._left = float("inf")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def check_parts(file: BinaryIO, name: str, whole: bool = False) -> None:
    """Refuse costly metadata before the pixels of a PNG or JPEG file, or in the `whole` PNG file.

    The file is at its start afterwards.
    """
    file.seek(0)
    start = file.read(8)
    if start == b"\x89PNG\r\n\x1a\n":
        _limit(_png(file, whole), name)
    elif start.startswith(b"\xff\xd8"):
        _limit(_jpeg(file, name), name)
    file.seek(0)


def tags_of(data: bytes, order: str) -> Iterator[tuple[int, int, int, bytes]]:
    """The first directory of TIFF or EXIF data: number, type, bytes and value (or its place) of each tag."""
    if len(data) < 8:
        return
    (place,) = struct.unpack_from(f"{order}I", data, 4)
    count = int.from_bytes(data[place : place + 2], "little" if order == "<" else "big")
    whole = max(0, (len(data) - place - 2) // 12)
    entries = data[place + 2 : place + 2 + 12 * min(count, whole)]
    for tag, kind, values, value in struct.iter_unpack(f"{order}HHI4s", entries):
        yield tag, kind, values * _UNITS.get(kind, 0), value


def _limit(steps: Iterator[int], name: str) -> None:
    taken = 0
    for step in steps:
        taken += step
        if taken > MAX_STEPS:
            raise _too_much(name)


def _png(file: BinaryIO, whole: bool) -> Iterator[int]:
    while len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IDAT" and not whole:
            return
        if kind not in _PIXELS or length < _SMALL:
            yield HEAVY if kind in _COMPRESSED else 1
        file.seek(length + 4, os.SEEK_CUR)


def _jpeg(file: BinaryIO, name: str) -> Iterator[int]:
    """The segments before the first scan, which end where Pillow's do: its table says which of them have a length."""
    file.seek(2)
    exif = b""
    while byte := file.read(1):
        yield 1
        if byte != b"\xff":
            continue
        while (byte := file.read(1)) == b"\xff":
            yield 1
        if byte == _SCAN:
            break
        if MARKER.get(0xFF00 + int.from_bytes(byte, "big"), ("", "", None))[2] is None:
            continue
        data = file.read(max(0, int.from_bytes(file.read(2), "big") - 2))
        if data.startswith(b"MPF\0"):
            _check_tags(data[4:], name)
        elif data.startswith(b"Exif\0\0"):
            yield HEAVY
            exif += data[6:]
    _check_tags(exif, name)


def _check_tags(data: bytes, name: str) -> None:
    order = "<" if data.startswith(b"II") else ">"
    if sum(size for *_, size, _ in tags_of(data, order) if size <= len(data)) > MAX_OVERLAP * len(data):
        raise CovistError(f"{name} has tags that share their bytes; save it again without metadata")


def _too_much(name: str) -> CovistError:
    return CovistError(f"{name} has far more metadata than images have; save it again without metadata")
