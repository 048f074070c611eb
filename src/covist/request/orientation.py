"""Images turned as their metadata ask for, without reading the rest of them.

Pillow's own function reads every tag, those of further directories included, and writes them again.
"""

from __future__ import annotations

import re
import struct
from typing import Any

from PIL import Image, ImageOps

from covist.request.image_parts import tags_of

_TAG = 0x0112
_SHORT = 3
_IN_XMP = re.compile(r'tiff:Orientation(?:="|>)([1-8])')
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def upright(image: Image.Image) -> Image.Image:
    """A loaded image as a viewer shows it."""
    if image.format == "TIFF":  # its tags are the header itself, which has been read
        return ImageOps.exif_transpose(image)
    turn = _TURNS.get(_in_exif(_exif(image.info)) or _in_xmp(image.info))
    return image if turn is None else image.transpose(turn)


def _exif(info: dict[Any, Any]) -> bytes:
    data = info.get("exif")
    if data is None:  # as ImageMagick writes it into PNG files: a line for each of name, length and hexadecimal text
        return bytes.fromhex("".join(info.get("Raw profile type exif", "").split("\n")[3:]))
    return data


def _in_exif(data: bytes) -> int | None:
    data = data.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    for tag, kind, size, value in tags_of(data, order) if order else ():
        if (tag, kind, size) == (_TAG, _SHORT, 2):
            return struct.unpack(f"{order}H", value[:2])[0]
    return None


def _in_xmp(info: dict[Any, Any]) -> int:
    """1, which turns nothing, if there is none."""
    text = info.get("XML:com.adobe.xmp", info.get("xmp", ""))
    found = _IN_XMP.search(text.decode("latin-1") if isinstance(text, bytes) else text)
    return int(found[1]) if found else 1
