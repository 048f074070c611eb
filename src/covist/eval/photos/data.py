"""Photographs with captions that people wrote: a folder with `captions.txt` and `images`, as Flickr8k is shared.

    image,caption
    1000268201.jpg,A child in a pink dress is climbing up a set of stairs .

The split of an image follows from its file name alone, so that adding or removing images moves no other one.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from covist.errors import CovistError

CAPTIONS, IMAGES = "captions.txt", "images"
PROMPT = "Describe the photo."
TRAIN, DEVELOPMENT, TEST = "train", "development", "test"
_TENTHS = {0: DEVELOPMENT, 1: TEST}  # the other eight tenths are for training


@dataclass(frozen=True)
class Photo:
    """A photograph and what people wrote about it."""

    path: Path
    captions: tuple[str, ...]

    @property
    def split(self) -> str:
        return split_of(self.path.name)


def split_of(name: str) -> str:
    """The split of an image: "train", "development" or "test", by a hash of its file name.

    >>> split_of("1000268201_693b08cb0e.jpg")
    'train'
    """
    return _TENTHS.get(name_hash(name) % 10, TRAIN)


def name_hash(name: str) -> int:
    """A number that looks random but follows from a file name; it decides the split and the order."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def read_photos(folder: str | Path, split: str) -> list[Photo]:
    """The photographs of a split, in an order that follows from their names and is otherwise random.

    A captioned image that is not in the folder is refused. Of files with the same content only the first name counts,
    in whichever split it is: an image must not be in two splits.
    """
    folder = Path(folder)
    captions = _captions(folder / CAPTIONS)
    missing = [name for name in captions if not (folder / IMAGES / name).is_file()]
    if missing:
        raise CovistError(f"{folder / IMAGES} has no {missing[0]}, which {CAPTIONS} describes ({len(missing)} missing)")
    names = sorted(set(captions) - set(_copies(folder / IMAGES, captions)), key=name_hash)
    found = [Photo(folder / IMAGES / name, tuple(captions[name])) for name in names if split_of(name) == split]
    if not found:
        raise CovistError(f"{folder} has no image in the {split} split")
    return found


def _captions(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
    except OSError as error:
        raise CovistError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise CovistError(f"cannot read {path}: it is not text in UTF-8") from None
    if not rows or not {"image", "caption"} <= rows[0].keys():
        raise CovistError(f"{path} must begin with the line image,caption and hold one caption per line")
    written: dict[str, list[str]] = {}
    for row in rows:
        if row["image"] and (row["caption"] or "").strip():
            written.setdefault(row["image"], []).append(row["caption"].strip())
    return written


def _copies(folder: Path, names: dict[str, list[str]]) -> Iterator[str]:
    """Names of files whose content an earlier name has; only files of equal size are read."""
    sizes: dict[int, list[str]] = {}
    for name in sorted(names):
        sizes.setdefault((folder / name).stat().st_size, []).append(name)
    seen = set()
    for name in chain.from_iterable(same for same in sizes.values() if len(same) > 1):
        content = hashlib.sha256((folder / name).read_bytes()).digest()
        if content in seen:
            yield name
        seen.add(content)
