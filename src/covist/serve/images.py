"""Images and videos of a request, from data URLs or from allowed hosts: measured by their headers, then decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image

from covist.errors import CovistError
from covist.request.data_urls import DECODED, decode_base64, image_data, is_data_url
from covist.request.images import count_pixels, decode_image
from covist.request.messages import Kind, Medium
from covist.request.videos import Video
from covist.serve.errors import Refusal
from covist.serve.fetch import Fetcher
from covist.serve.limits import Limits
from covist.serve.room import RoomClaim
from covist.serve.videos import EncodedVideo, read_video


@dataclass(frozen=True)
class Source:
    """An image or a video as it was sent: a data URL, or the bytes that a host sent.

    place: names it in messages
    """

    kind: Kind
    place: str
    given: str | bytes


@dataclass(frozen=True)
class Encoded:
    """An image that has not been decoded.

    pixels: that it takes when it is decoded, as its header says
    """

    place: str
    data: bytes
    pixels: int


class ImageReader:
    """Reads the images and videos of requests within the limits."""

    def __init__(self, limits: Limits, fetcher: Fetcher):
        self._limits, self._fetcher = limits, fetcher

    async def fetched(self, media: Sequence[Medium], claim: RoomClaim) -> list[Source]:
        """All of them; the bytes of those that are on hosts count towards `claim`."""
        return [
            Source(
                source.kind,
                source.place,
                source.given if is_data_url(medium.url) else await self._fetcher.fetch(medium.url, source.place, claim),
            )
            for source, medium in zip(numbered(media), media, strict=True)
        ]

    def measured(self, sources: Sequence[Source]) -> list[Encoded | EncodedVideo]:
        """The media of a request; refuses those that together have too many pixels, before any is decoded."""
        media = [self._measured(source) for source in sources]
        if sum(medium.pixels for medium in media) > self._limits.request_pixels:
            what = "images" if all(source.kind == "image" for source in sources) else "images and frames"
            message = f"the {what} have more than {self._limits.request_pixels:,} pixels together"
            raise Refusal(400, "images_too_large", message, param="messages")
        return media

    def decoded(self, medium: Encoded | EncodedVideo, check: Callable[[], None] = lambda: None) -> Image.Image | Video:
        """An image as upright RGB, or the frames of a video; `check` is called now and then, and may raise."""
        with _refusing(medium.place):
            if isinstance(medium, EncodedVideo):
                return medium.decoded(self._limits, check)
            return decode_image(medium.data, medium.place, self._limits.image_pixels, DECODED)

    def _measured(self, source: Source) -> Encoded | EncodedVideo:
        place, given = source.place, source.given
        with _refusing(place):
            if isinstance(given, str) and not is_data_url(given):  # only where nothing can be fetched
                raise CovistError(f"{place} must be a data URL")
            if isinstance(given, str):
                self._check_size(given, place)
            if source.kind == "video":
                return read_video(given, place, self._limits)
            data = decode_base64(image_data(given, place), place) if isinstance(given, str) else given
            return Encoded(place, data, count_pixels(data, place, self._limits.image_pixels, DECODED))

    def _check_size(self, url: str, place: str) -> None:
        """Refuse a data URL that is too large before it is decoded."""
        if len(url.partition(",")[2]) * 3 // 4 > self._limits.image_bytes + 3:
            message = f"{place} is larger than {self._limits.image_bytes:,} bytes"
            raise Refusal(400, "image_too_large", message, param=place)


def numbered(media: Sequence[Medium]) -> list[Source]:
    """The media of a request as they were sent, each with its name: "image 2" is the second image."""
    counts: dict[str, int] = {}
    sources = []
    for medium in media:
        counts[medium.kind] = counts.get(medium.kind, 0) + 1
        sources.append(Source(medium.kind, f"{medium.kind} {counts[medium.kind]}", medium.url))
    return sources


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    try:
        yield
    except CovistError as error:
        raise Refusal(400, "bad_image", str(error), param=place) from None
