"""Videos from files and folders: a few frames, evenly spaced, with their times.

A folder of images is a video with its frames sorted by name. A file is decoded by PyAV, which comes with
`pip install "covist[video]"`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from covist.errors import CovistError
from covist.grid import evenly
from covist.opening import open_file
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


def each_frame(path: str | Path, rate: float = FOLDER_RATE) -> Iterator[Image.Image]:
    """The frames one by one: all images of a folder, or `rate` frames of each second of a file."""
    check_video(path)
    path = Path(path)
    if path.is_dir():
        yield from map(load_image, frame_files(path))
    else:
        yield from VideoFile(lambda: str(path), f"video {path}").each(rate)


def check_video(path: str | Path) -> None:
    """Refuse what cannot be a video, without reading its frames."""
    refuse_url(path, "video")
    if os.path.isdir(path):
        frame_files(Path(path))
        return
    with open_file(path, "video") as file:
        if os.fstat(file.fileno()).st_size == 0:
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
    names = [files[number].name for number in numbers]
    return Video(same_size(images, names, f"video {folder}"), numbers, len(files), rate)


def same_size(frames: Sequence[Image.Image], names: Sequence[str], place: str) -> tuple[Image.Image, ...]:
    """Refuse frames of different sizes; the names are those of the frames."""
    for name, frame in zip(names, frames, strict=True):
        if frame.size != frames[0].size:
            first, own = ("{} x {}".format(*one.size) for one in (frames[0], frame))
            raise CovistError(f"{place}: {name} is {own}, {names[0]} {first}; give one size")
    return tuple(frames)


def _from_file(path: Path, wanted: int) -> Video:
    return VideoFile(lambda: str(path), f"video {path}").frames(wanted)


class VideoFile:
    """A video that PyAV decodes.

    source: returns a path, or a file of bytes from the start
    name: names it in messages
    container: the only format that is tried; FFmpeg has some that read other files and addresses
    """

    def __init__(self, source: Callable[[], str | BinaryIO], name: str, container: str | None = None):
        try:
            import av
        except ImportError:
            problem = f'{name} needs PyAV: pip install "covist[video]", or give its frames as images'
            raise CovistError(problem) from None
        self._av, self._source, self._name, self._container = av, source, name, container

    def frame_pixels(self) -> int:
        """The pixels of a frame, as the header says."""
        with self._opened() as (_, stream):
            return stream.codec_context.width * stream.codec_context.height

    def frames(self, wanted: int, watch: Callable[[int], None] = lambda pixels: None) -> Video:
        """At most `wanted` frames; `watch` is told the pixels of every frame that is decoded, and may raise."""
        with self._opened() as (container, stream):
            total = sum(1 for packet in container.demux(stream) if packet.size)
            rate = float(stream.average_rate or stream.guessed_rate or FOLDER_RATE)
        chosen, decoded = self._choose(evenly(total, wanted), watch)
        if decoded != total:  # not every packet is a visible frame
            chosen, decoded = self._choose(evenly(decoded, wanted), watch)
        if not chosen:
            raise CovistError(f"{self._name} has {counted(0, 'frame')}")
        return Video(tuple(chosen.values()), tuple(chosen), decoded, rate)

    def each(self, rate: float) -> Iterator[Image.Image]:
        """About `rate` frames of each second, all of them if it has fewer."""
        with self._opened() as (container, stream):
            own = float(stream.average_rate or stream.guessed_rate or rate)
            for number, frame in enumerate(container.decode(stream)):
                if number == 0 or int(number * rate / own) > int((number - 1) * rate / own):
                    yield _upright(frame)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        try:
            with self._av.open(self._source(), format=self._container) as container:
                if not container.streams.video:
                    raise CovistError(f"{self._name} contains no video stream")
                yield container, container.streams.video[0]
        except self._av.FFmpegError as error:
            problem = f"is damaged, or not a video that PyAV can read ({error.strerror})"
            raise CovistError(f"{self._name} {problem}") from None

    def _choose(self, numbers: Sequence[int], watch: Callable[[int], None]) -> tuple[dict[int, Image.Image], int]:
        """The frames with these numbers, and the number of all frames."""
        wanted, chosen, count = set(numbers), {}, 0
        with self._opened() as (container, stream):
            stream.thread_type = "AUTO"
            for count, frame in enumerate(container.decode(stream), start=1):
                watch(frame.width * frame.height)
                if count - 1 in wanted:
                    chosen[count - 1] = _upright(frame)
        sizes = [one.size for one in chosen.values()][:1]
        # A stream may change its resolution midway.
        same = {number: one if one.size in sizes else one.resize(sizes[0]) for number, one in chosen.items()}
        return same, count


def _upright(frame: Any) -> Image.Image:
    """A frame as upright RGB: phones store a rotation, in degrees anticlockwise, which older versions of PyAV lack."""
    image = frame.to_image().convert("RGB")
    turn = getattr(frame, "rotation", 0)
    return image.rotate(turn, expand=True) if turn else image
