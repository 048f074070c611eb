"""Pictures from files, checked before anything expensive happens."""

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from covist.errors import CovistError

MAX_PIXELS = 100_000_000
"""Larger pictures are refused: a small file can unpack to gigabytes."""


def load_image(path: str | Path) -> Image.Image:
    """Read a picture as upright RGB; whatever is wrong with the file is a `ValueError` of one line."""
    path = Path(path)
    if not path.is_file():
        raise CovistError(f"image {path} " + ("is a directory" if path.is_dir() else "does not exist"))
    if path.stat().st_size == 0:
        raise CovistError(f"image {path} is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _decode(path)
    except UnidentifiedImageError:
        raise CovistError(f"{path} is not a picture that Pillow can read") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise CovistError(f"image {path} is too large: more than {MAX_PIXELS:,} pixels") from None
    except (OSError, SyntaxError, EOFError) as error:
        raise CovistError(f"image {path} is damaged or truncated ({error})") from None


def _decode(path: Path) -> Image.Image:
    with Image.open(path) as picture:  # reads the header only
        width, height = picture.size
        if min(width, height) < 1:
            raise CovistError(f"image {path} has no pixels ({width} x {height})")
        if width * height > MAX_PIXELS:
            raise Image.DecompressionBombError
        picture.load()
        upright = ImageOps.exif_transpose(picture)
        if upright.mode.startswith("I"):  # 16-bit greys, of which Pillow would turn all but the darkest white
            upright = Image.fromarray((np.asarray(upright).clip(0, 65535) // 256).astype(np.uint8))
        return upright.convert("RGB")
