"""A 5x7 bitmap font, so that scenes look the same on every machine and with every version of Pillow."""

from functools import lru_cache

import numpy as np

DIGITS = "0123456789"
LETTERS = "ACEFHKLMPTXY"  # letters that remain distinguishable at ten pixels

_ROWS = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11111 00010 00100 00010 00001 10001 01110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "C": "01110 10001 10000 10000 10000 10001 01110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "F": "11111 10000 10000 11110 10000 10000 10000",
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "M": "10001 11011 10101 10101 10001 10001 10001",
    "P": "11110 10001 10001 11110 10000 10000 10000",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "X": "10001 10001 01010 00100 01010 10001 10001",
    "Y": "10001 10001 01010 00100 00100 00100 00100",
}

WIDTH, HEIGHT = 8, 11  # pixels of one drawn glyph


def _stretch(bitmap: np.ndarray, length: int, axis: int) -> np.ndarray:
    """Area resampling along one axis: every output pixel averages the part of the bitmap that it covers."""
    cells = bitmap.shape[axis]
    edges = np.linspace(0, cells, length + 1)
    lower, upper = edges[:-1, None], edges[1:, None]
    cell = np.arange(cells)[None]
    overlap = np.clip(np.minimum(upper, cell + 1) - np.maximum(lower, cell), 0, None)  # [length, cells]
    overlap /= overlap.sum(1, keepdims=True)
    return np.moveaxis(np.tensordot(overlap, bitmap, axes=(1, axis)), 0, axis)


@lru_cache(maxsize=256)
def draw(char: str, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """How much of each pixel a character covers, [height, width] in 0..1."""
    bitmap = np.array([[int(bit) for bit in row] for row in _ROWS[char].split()], dtype=np.float64)
    return _stretch(_stretch(bitmap, height, 0), width, 1).astype(np.float32)
