"""Images of a request: from data URLs, or from allowed hosts."""

from __future__ import annotations

from PIL import Image

from covist.errors import CovistError
from covist.request.data_urls import FORMATS, decode_base64, is_data_url, split_data_url
from covist.request.images import decode_image
from covist.serve.errors import Refusal
from covist.serve.fetch import Fetcher
from covist.serve.limits import Limits


class ImageReader:
    """Reads the images of requests within the limits."""

    def __init__(self, limits: Limits, fetcher: Fetcher):
        self._limits, self._fetcher = limits, fetcher

    def read(self, url: str, place: str) -> Image.Image:
        """The image of a data URL or a web URL, as upright RGB; `place` names the image in messages."""
        try:
            formats, data = self._data(url, place)
            return decode_image(data, place, self._limits.image_pixels, formats)
        except CovistError as error:
            raise Refusal(400, "bad_image", str(error), param=place) from None

    def _data(self, url: str, place: str) -> tuple[tuple[str, ...], bytes]:
        """The Pillow formats to try, and the bytes."""
        if not is_data_url(url):
            return tuple(FORMATS.values()), self._fetcher.fetch(url, place)
        kind, encoded = split_data_url(url, place)
        if len(encoded) * 3 // 4 > self._limits.image_bytes + 3:
            message = f"{place} is larger than {self._limits.image_bytes:,} bytes"
            raise Refusal(400, "image_too_large", message, param=place)
        return (kind,), decode_base64(encoded, place)
