"""Images of a request, from data URLs or from allowed hosts: measured by their headers, then decoded one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image

from covist.errors import CovistError
from covist.request.data_urls import FORMATS, decode_base64, is_data_url, split_data_url
from covist.request.images import count_pixels, decode_image
from covist.serve.errors import Refusal
from covist.serve.fetch import Fetcher
from covist.serve.limits import Limits
from covist.serve.room import RoomClaim


@dataclass(frozen=True)
class Encoded:
    """An image that has not been decoded.

    place: names it in messages
    formats: the Pillow formats to try
    pixels: as its header says
    """

    place: str
    data: bytes
    formats: tuple[str, ...]
    pixels: int


class ImageReader:
    """Reads the images of requests within the limits."""

    def __init__(self, limits: Limits, fetcher: Fetcher):
        self._limits, self._fetcher = limits, fetcher

    async def fetched(self, urls: Sequence[str], claim: RoomClaim) -> list[str | bytes]:
        """Data URLs as they are, and the bytes of the others, which count towards `claim`."""
        return [
            url if is_data_url(url) else await self._fetcher.fetch(url, _place(number), claim)
            for number, url in enumerate(urls, 1)
        ]

    def measured(self, sources: Sequence[str | bytes]) -> list[Encoded]:
        """The images of a request; refuses those that together have too many pixels, before any is decoded."""
        images = [self._measured(source, _place(number)) for number, source in enumerate(sources, 1)]
        if sum(image.pixels for image in images) > self._limits.request_pixels:
            message = f"the images have more than {self._limits.request_pixels:,} pixels together"
            raise Refusal(400, "images_too_large", message, param="messages")
        return images

    def decoded(self, image: Encoded) -> Image.Image:
        """The image as upright RGB."""
        with _refusing(image.place):
            return decode_image(image.data, image.place, self._limits.image_pixels, image.formats)

    def _measured(self, source: str | bytes, place: str) -> Encoded:
        with _refusing(place):
            formats, data = self._data(source, place) if isinstance(source, str) else (tuple(FORMATS.values()), source)
            return Encoded(place, data, formats, count_pixels(data, place, self._limits.image_pixels, formats))

    def _data(self, url: str, place: str) -> tuple[tuple[str, ...], bytes]:
        if not is_data_url(url):  # only where nothing can be fetched
            raise CovistError(f"{place} must be a data URL")
        kind, encoded = split_data_url(url, place)
        if len(encoded) * 3 // 4 > self._limits.image_bytes + 3:
            message = f"{place} is larger than {self._limits.image_bytes:,} bytes"
            raise Refusal(400, "image_too_large", message, param=place)
        return (kind,), decode_base64(encoded, place)


def _place(number: int) -> str:
    return f"image {number}"


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    try:
        yield
    except CovistError as error:
        raise Refusal(400, "bad_image", str(error), param=place) from None
