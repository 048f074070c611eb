"""Videos of a square that moves to the right, as frames, folders and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image


def moving_square(frames: int = 8, width: int = 120, height: int = 80) -> list[Image.Image]:
    """A red square on blue; it is `place_of(frame)` of the way to the right side."""
    made = []
    for number in range(frames):
        image = Image.new("RGB", (width, height), (20, 40, 160))
        left = round((width - height // 2) * number / max(1, frames - 1))
        image.paste((230, 30, 30), (left, height // 4, left + height // 2, height // 4 + height // 2))
        made.append(image)
    return made


def place_of(frame: Image.Image) -> float:
    """Where the square is, 0 at the left side to 1 at the right."""
    row = frame.height // 2
    red = [x for x in range(frame.width) if frame.getpixel((x, row))[0] > 128]
    return red[0] / (frame.width - frame.height // 2)


def write_folder(folder: Path, frames: list[Image.Image]) -> Path:
    """Names without leading zeros, beside a file that is no image."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames):
        frame.save(folder / f"frame{number}.png")
    (folder / "notes.txt").write_text("no frame")
    return folder


def write_file(path: Path, frames: list[Image.Image], rate: int = 10) -> Path:
    """A file in the format of its ending; skips the test where PyAV is missing."""
    av = pytest.importorskip("av", reason="video files need PyAV (the extra `video`)")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *frames[0].size, "yuv420p"
        stream.bit_rate = 4_000_000
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode(None))
    return path
