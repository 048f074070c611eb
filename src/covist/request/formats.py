"""Which image formats are read: by their content in a decoder, by their ending in a folder."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
"""The formats that are read, by Pillow's names. It knows more, and some start programs: PostScript runs Ghostscript."""
HEIC_ENDINGS = (".heic", ".heics", ".heif", ".heifs", ".hif")
INSTALL_HEIC = "pip install 'covist[heic]'"
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def readable() -> list[str]:
    """The formats of the list that this Pillow can open: some need a newer one, HEIF needs pillow-heif."""
    _add_heif()
    Image.init()
    return [kind for kind in FORMATS if kind in Image.OPEN]


def has_image_ending(name: str) -> bool:
    """Whether a file is called like an image in one of the formats that are read.

    >>> has_image_ending("photo.JPG"), has_image_ending("drawing.eps")
    (True, False)
    """
    return Path(name).suffix.lower() in _endings()


def other_format(start: bytes) -> str:
    """What a file that cannot be read is, by its first bytes, and what to do; nothing if nobody knows.

    >>> other_format(b"%!PS-Adobe-3.0 EPSF-3.0")
    '; it is PostScript (EPS), which covist does not run: convert it to PNG'
    """
    if start[4:8] == b"ftyp" and start[8:12] in _HEIC_BRANDS:
        return f"; it is HEIC, which needs pillow-heif: {INSTALL_HEIC}"
    if start.startswith((b"%!PS", b"\xc5\xd0\xd3\xc6")):
        return "; it is PostScript (EPS), which covist does not run: convert it to PNG"
    if start.startswith(b"%PDF"):
        return "; it is a PDF file: convert its pages to PNG"
    if b"<svg" in start.lower():
        return "; it is SVG, a drawing without pixels: convert it to PNG"
    return ""


@cache
def _endings() -> frozenset[str]:
    kinds = readable()
    return frozenset(ending for ending, kind in Image.registered_extensions().items() if kind in kinds)


@cache
def _add_heif() -> None:
    if find_spec("pillow_heif") is not None:
        from pillow_heif import register_heif_opener

        register_heif_opener()
