"""Images of a request: from data URLs, or from hosts that the server was allowed to ask."""

from __future__ import annotations

import base64
import binascii
import re

from PIL import Image

from covist.errors import CovistError
from covist.request.images import decode_image
from covist.serve.errors import Refusal
from covist.serve.fetch import Fetcher
from covist.serve.limits import Limits

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
"""What OpenAI takes; other decoders of Pillow are never reached from outside."""
_DATA = re.compile(r"data:([\w.+/-]*)((?:;[\w.=-]+)*),", re.ASCII)


class ImageReader:
    """Reads the images of requests within the limits."""

    def __init__(self, limits: Limits, fetcher: Fetcher):
        self._limits, self._fetcher = limits, fetcher

    def read(self, url: str, place: str) -> Image.Image:
        """The image that a URL holds or names, upright and RGB; `place` is the field that it came in."""
        if url[:5].lower() == "data:":
            formats, data = self._of_data_url(url, place)
        else:
            formats, data = tuple(FORMATS.values()), self._fetcher.fetch(url, place)
        try:
            return decode_image(data, place, self._limits.image_pixels, formats)
        except CovistError as error:
            raise Refusal(400, "bad_image", str(error), param=place) from None

    def _of_data_url(self, url: str, place: str) -> tuple[tuple[str, ...], bytes]:
        head = _DATA.match(url[:256])
        kind = FORMATS.get(head[1].lower()) if head else None
        if head is None or kind is None or not head[2].lower().endswith(";base64"):
            message = f"{place} must be a data URL: data:image/png;base64,... ({', '.join(FORMATS)})"
            raise Refusal(400, "bad_image", message, param=place)
        encoded = url[head.end() :]
        if len(encoded) * 3 // 4 > self._limits.image_bytes + 3:
            message = f"{place} is larger than {self._limits.image_bytes:,} bytes"
            raise Refusal(400, "image_too_large", message, param=place)
        try:
            return (kind,), base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise Refusal(400, "bad_image", f"{place} is not valid base64", param=place) from None
