"""Videos from files and folders: a few frames, evenly spaced, with their times.

A folder of images is a video with its frames sorted by name. A file is decoded by PyAV, which comes with
`pip install "covist[video]"`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from covist.errors import CovistError
from covist.grid import evenly
from covist.request.images import image_files, load_image, refuse_url
from covist.units import counted

FRAMES = 16
"""The default number of frames."""
FOLDER_RATE = 2.0
"""The default frame rate of a folder, two images per second as for the Qwen models."""


@dataclass(frozen=True)
class Video:
    """Frames chosen from a video.

    frames:  as upright RGB, all of one size
    numbers: which frames of the whole video they are, counted from 0
    total:   frames of the whole video
    rate:    frames of the whole video per second
    """

    frames: tuple[Image.Image, ...]
    numbers: tuple[int, ...]
    total: int
    rate: float = FOLDER_RATE

    @classmethod
    def of(cls, frames: Sequence[Image.Image], rate: float = FOLDER_RATE) -> Video:
        """A video of all these frames, `rate` of them per second."""
        return cls(tuple(frames), tuple(range(len(frames))), len(frames), rate)

    @property
    def seconds(self) -> tuple[float, ...]:
        """The time of each frame."""
        return tuple(number / self.rate for number in self.numbers)

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of transformers' `VideoMetadata`, from which processors compute timestamps."""
        width, height = self.frames[0].size
        return {
            "total_num_frames": self.total,
            "fps": self.rate,
            "width": width,
            "height": height,
            "duration": self.total / self.rate,
            "frames_indices": list(self.numbers),
        }


def load_video(path: str | Path, frames: int = FRAMES, rate: float = FOLDER_RATE) -> Video:
    """Read at most `frames` frames from a file or a folder of images; `rate` is the frame rate of a folder.

    Anything wrong with it raises a `CovistError` of one line.
    """
    check_video(path)
    if frames < 1:
        raise CovistError(f"frames must be at least 1, got {frames}")
    if not (math.isfinite(rate) and rate > 0):
        raise CovistError(f"the frames per second must be a positive number, got {rate}")
    path = Path(path)
    return _from_folder(path, frames, rate) if path.is_dir() else _from_file(path, frames)


def check_video(path: str | Path) -> None:
    """Refuse what cannot be a video, without reading its frames."""
    refuse_url(path, "video")
    path = Path(path)
    if path.is_dir():
        frame_files(path)
    elif not path.is_file():
        raise CovistError(f"video {path} does not exist")
    elif path.stat().st_size == 0:
        raise CovistError(f"video {path} is empty (0 bytes)")


def frame_files(folder: Path) -> list[Path]:
    """The frames of a folder, in order."""
    files = image_files(folder)
    if not files:
        raise CovistError(f"video {folder}: the folder contains no images")
    return files


def _from_folder(folder: Path, wanted: int, rate: float) -> Video:
    files = frame_files(folder)
    numbers = evenly(len(files), wanted)
    images = [load_image(files[number]) for number in numbers]
    for number, image in zip(numbers, images, strict=True):
        if image.size != images[0].size:
            first, own = ("{} x {}".format(*one.size) for one in (images[0], image))
            raise CovistError(f"video {folder}: {files[number].name} is {own}, {files[0].name} {first}; give one size")
    return Video(tuple(images), numbers, len(files), rate)


def _from_file(path: Path, wanted: int) -> Video:
    try:
        import av
    except ImportError:
        raise CovistError(
            f'video {path} needs PyAV: pip install "covist[video]", or give a folder with its frames as images'
        ) from None
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise CovistError(f"{path} contains no video stream")
            stream = container.streams.video[0]
            total = sum(1 for packet in container.demux(stream) if packet.size)
            rate = float(stream.average_rate or stream.guessed_rate or FOLDER_RATE)
        chosen, decoded = _choose(path, evenly(total, wanted))
        if decoded != total:  # not every packet is a visible frame
            chosen, decoded = _choose(path, evenly(decoded, wanted))
    except av.FFmpegError as error:
        raise CovistError(f"video {path} is damaged, or not a video that PyAV can read ({error.strerror})") from None
    if not chosen:
        raise CovistError(f"video {path} has {counted(0, 'frame')}")
    return Video(tuple(chosen.values()), tuple(chosen), decoded, rate)


def _choose(path: Path, numbers: Sequence[int]) -> tuple[dict[int, Image.Image], int]:
    """The frames with these numbers, and the number of all frames."""
    wanted, chosen, count = set(numbers), {}, 0
    for count, frame in enumerate(_decoded(path), start=1):
        if count - 1 in wanted:
            chosen[count - 1] = _upright(frame)
    sizes = [one.size for one in chosen.values()][:1]
    # A stream may change its resolution midway.
    same = {number: one if one.size in sizes else one.resize(sizes[0]) for number, one in chosen.items()}
    return same, count


def _decoded(path: Path) -> Iterator[Any]:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        yield from container.decode(stream)


def _upright(frame: Any) -> Image.Image:
    """A frame as upright RGB: phones store a rotation, in degrees anticlockwise, which older versions of PyAV lack."""
    image = frame.to_image().convert("RGB")
    turn = getattr(frame, "rotation", 0)
    return image.rotate(turn, expand=True) if turn else image
