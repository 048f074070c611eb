"""Videos of a request: files in containers that lead nowhere else, or frames as JPEG images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

from covist.errors import CovistError
from covist.grid import evenly
from covist.request.data_urls import DECODED, decode_base64, split_data_url
from covist.request.images import count_pixels, decode_image
from covist.request.videos import Video, VideoFile, same_size
from covist.serve.limits import Limits

FRAMES_TYPE = "video/jpeg"
"""The type of a data URL that holds frames, as base64 with commas between them; vLLM's server takes it, too."""
MOST_FRAMES = 1024
"""Frames that a data URL may hold, of which some are chosen."""


@dataclass(frozen=True)
class EncodedVideo:
    """A video that has not been decoded.

    frames: its frames as image files, or nothing
    file: its file, if it has no frames
    pixels: of all frames that are kept
    """

    place: str
    pixels: int
    frames: tuple[bytes, ...] = ()
    file: bytes = b""

    def decoded(self, limits: Limits, check: Callable[[], None]) -> Video:
        """The frames that are kept; `check` is called before each frame, and may raise."""
        if self.frames:
            numbers, images = evenly(len(self.frames), limits.video_frames), []
            for number in numbers:
                check()
                images.append(decode_image(self.frames[number], self.place, limits.image_pixels, DECODED))
            names = [f"frame {number + 1}" for number in numbers]
            return Video(same_size(images, names, self.place), numbers, len(self.frames))
        seen = 0

        def watch(pixels: int) -> None:
            nonlocal seen
            check()
            seen += pixels
            if pixels > limits.image_pixels or seen > limits.video_pixels:
                raise CovistError(f"{self.place} is too long: its frames have more than {limits.video_pixels:,} pixels")

        return _file(self.file, self.place).frames(limits.video_frames, watch)


def read_video(given: str | bytes, place: str, limits: Limits) -> EncodedVideo:
    """A video from a data URL, or from the bytes that a host sent."""
    if isinstance(given, str):
        mime, encoded = split_data_url(given, place)
        if mime == FRAMES_TYPE:
            return _from_frames(encoded.split(","), place, limits)
        if not mime.startswith("video/"):
            raise CovistError(f"{place} must be a data URL: data:video/mp4;base64,... or data:{FRAMES_TYPE};base64,...")
        given = decode_base64(encoded, place)
    pixels = _file(given, place).frame_pixels()
    if pixels > limits.image_pixels:
        raise CovistError(f"{place} is too large: a frame has more than {limits.image_pixels:,} pixels")
    return EncodedVideo(place, pixels * limits.video_frames, file=given)


def _from_frames(texts: list[str], place: str, limits: Limits) -> EncodedVideo:
    if len(texts) > MOST_FRAMES:
        raise CovistError(f"{place} has more than {MOST_FRAMES:,} frames")
    frames = tuple(decode_base64(text, place) for text in texts)
    kept = [frames[number] for number in evenly(len(frames), limits.video_frames)]
    pixels = sum(count_pixels(frame, place, limits.image_pixels, DECODED) for frame in kept)
    return EncodedVideo(place, pixels, frames)


def _file(data: bytes, place: str) -> VideoFile:
    return VideoFile(lambda: BytesIO(data), place, _container(data, place))


def _container(data: bytes, place: str) -> str:
    """FFmpeg's name of the container, by its first bytes. Others, such as playlists, can name files and addresses."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return "avi"
    raise CovistError(f"{place} is not a video in MP4, MOV, WebM, Matroska or AVI format")
