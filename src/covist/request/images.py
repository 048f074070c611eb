"""Images from files and bytes, checked before anything expensive happens, as upright 8-bit RGB.

alpha         composited on white, as a browser would show it
16-bit grey   scaled to 8 bits by its format, 0 to 65535
float         0 to 1 is black to white; values beyond that are scaled by the image's own range
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from PIL import Image, UnidentifiedImageError

from covist.errors import CovistError
from covist.opening import open_file, reason_of
from covist.request.formats import has_image_ending, other_format, readable
from covist.request.image_parts import HeaderFile, check_parts
from covist.request.jpeg_scans import MAX_SCANS, has_too_many_scans
from covist.request.orientation import upright

MAX_PIXELS = 100_000_000
"""Larger images are refused: a small file can unpack to gigabytes."""
WHOLE_PIXELS = 25_000_000
"""JPEG files with more are decoded at half of their size or less, in a quarter of the memory: models resize them."""
MAX_RATIO = 200
"""Narrower images are refused: CLIP's processor makes their short side as long as that of others before it crops."""
_URL = re.compile(r"(https?|ftp|s3|gs|file|data):", re.IGNORECASE)


def load_image(path: str | Path) -> Image.Image:
    """Read an image as upright RGB; anything wrong with the file raises a `CovistError` of one line."""
    return _from_file(path, _decode)


def check_image(path: str | Path) -> None:
    """Refuse a file that is not an image, by its header alone: the rest may still be damaged."""
    _from_file(path, _open)


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, sorted by name with 10 after 9."""
    try:
        files = [file for file in folder.iterdir() if has_image_ending(file.name) and not file.name.startswith(".")]
    except OSError as error:
        raise CovistError(f"folder {folder} cannot be read: {reason_of(error)}") from None
    return sorted(files, key=lambda file: _natural(file.name))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """A sorting key in which 10 comes after 9."""
    parts = re.split(r"(\d+)", name)  # every other part is a number
    return [(is_number, int(part) if is_number else 0, part) for part, is_number in zip(parts, cycle((False, True)))]


def _from_file(path: str | Path, read: _Reader) -> Image.Image:
    refuse_url(path)
    with warnings.catch_warnings(), open_file(path, "image") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise CovistError(f"image {path} is empty (0 bytes)")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit is ours
        return _read(file, f"image {path}", MAX_PIXELS, read=read)


def decode_image(
    data: bytes, name: str = "image", max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] | None = None
) -> Image.Image:
    """Read an image from bytes as upright RGB, by the same rules; `formats` are those of the list to try.

    >>> decode_image(b"words", "image 1", formats=("PNG", "JPEG"))
    Traceback (most recent call last):
    covist.errors.CovistError: image 1 is not an image in PNG or JPEG format
    """
    return _read(BytesIO(data), name, max_pixels, formats)


def count_pixels(
    data: bytes, name: str = "image", max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] | None = None
) -> int:
    """The pixels that an image takes when it is decoded, by its header alone; the rest may still be damaged."""
    with _read(BytesIO(data), name, max_pixels, formats, _open) as image:
        whole = image.width * image.height
        _shrink(image)
        # A progressive file is kept whole while it is decoded, whatever comes out of it.
        return whole if image.info.get("progressive") else image.width * image.height


def _read(
    file: BinaryIO, name: str, max_pixels: int, formats: tuple[str, ...] | None = None, read: _Reader | None = None
) -> Image.Image:
    try:
        return (read or _decode)(file, name, max_pixels, formats)
    except (CovistError, MemoryError):
        raise
    except UnidentifiedImageError:
        file.seek(0)
        kind = f"that covist can read ({', '.join(readable())})"
        kind = f"{kind}{other_format(file.read(256))}" if formats is None else f"in {' or '.join(formats)} format"
        raise CovistError(f"{name} is not an image {kind}") from None
    except Image.DecompressionBombError:
        raise CovistError(f"{name} is too large: more than {max_pixels:,} pixels") from None
    except Exception as error:  # decoders of hostile files raise anything: RuntimeError, struct.error, KeyError ...
        problem = str(error) or type(error).__name__
        raise CovistError(f"{name} is damaged or truncated ({problem})") from None


def refuse_url(path: str | Path, kind: str = "image") -> None:
    """Refuse a URL as such, rather than saying that no such file exists."""
    if _URL.match(str(path)):
        raise CovistError(f"{kind} {path}: URLs are not read; download the {kind} and give the file")


_Reader = Callable[[BinaryIO, str, int, tuple[str, ...] | None], Image.Image]


def _decode(file: BinaryIO, name: str, max_pixels: int, formats: tuple[str, ...] | None) -> Image.Image:
    with _open(file, name, max_pixels, formats) as image:
        if image.format == "PNG":
            place = file.tell()
            check_parts(file, name, whole=True)
            file.seek(place)
        elif image.format in ("JPEG", "MPO"):
            file.seek(0)
            if has_too_many_scans(file.read()):
                raise CovistError(f"{name} has more than {MAX_SCANS} scans; save it again as an ordinary JPEG file")
            _shrink(image)
        image.load()
        shown = as_rgb(upright(image))
    shown.info.clear()  # a turn that has been made, and megabytes that nobody reads
    return shown


def _shrink(image: Image.Image) -> None:
    """Let the decoder of a large JPEG file write a smaller image."""
    sides = image.size
    for scale in (2, 4, 8):
        if image.format in ("JPEG", "MPO") and image.width * image.height > WHOLE_PIXELS:
            image.draft(None, (sides[0] // scale, sides[1] // scale))


def _open(file: BinaryIO, name: str, max_pixels: int, formats: tuple[str, ...] | None) -> Image.Image:
    """Read the header only; no other function lets Pillow open a file."""
    wanted = [kind for kind in readable() if formats is None or kind in formats]
    check_parts(file, name)
    header = HeaderFile(file, name)
    image = Image.open(cast(BinaryIO, header), formats=wanted)
    header.finish()
    width, height = image.size
    if min(width, height) < 1:
        raise CovistError(f"{name} has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise Image.DecompressionBombError
    if max(width, height) > MAX_RATIO * min(width, height):
        problem = f"one side may be at most {MAX_RATIO} times the other; crop it"
        raise CovistError(f"{name} has {width:,} x {height:,} pixels: {problem}")
    return image


def as_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode as 8-bit RGB, by the rules at the top of this file."""
    if image.mode.startswith("I"):  # 16-bit grey: Pillow would make all but the darkest values white
        return _from_grey(np.asarray(image).clip(0, 65535) // 256)
    if image.mode == "F":  # Pillow would make everything between 0 and 1 black
        return _from_grey(np.floor(_unit_range(np.asarray(image)) * 255 + 0.5))
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), coloured).convert("RGB")
    return image.convert("RGB")


def _unit_range(values: np.ndarray) -> np.ndarray:
    """Floats [h, w] from 0 to 1: unchanged if they are in this range, else scaled from smallest to largest."""
    finite = values[np.isfinite(values)].astype(np.float64)
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    known = np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low)
    if low >= 0 and high <= 1:
        return known
    return (known - low) / (high - low) if high > low else np.full_like(known, min(max(low, 0.0), 1.0))


def _from_grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")
