"""Images and videos inside the request itself: data URLs and base64."""

from __future__ import annotations

import base64
import binascii
import re

from covist.errors import CovistError

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
"""The formats that OpenAI accepts; a data URL never reaches other decoders of Pillow."""
DECODED = tuple(FORMATS.values())
"""What the data of an image may be, whatever its type says: clients label them by file names, which are often wrong."""
_MISSPELT = ("image/jpg",)
_HEAD = re.compile(r"data:([\w.+/-]*)((?:;[\w.=-]+)*),", re.ASCII)


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def split_data_url(url: str, place: str) -> tuple[str, str]:
    """The media type and the base64 text of a data URL; `place` names the field in messages.

    >>> split_data_url("data:image/png;base64,aGk=", "image")
    ('image/png', 'aGk=')
    """
    head = _HEAD.match(url[:256])
    if head is None or not head[2].lower().endswith(";base64"):
        raise CovistError(f"{place} must be a data URL: data:image/png;base64,...")
    return head[1].lower(), url[head.end() :]


def image_data(url: str, place: str) -> str:
    """The base64 text of a data URL that says that it is an image."""
    mime, encoded = split_data_url(url, place)
    if mime not in FORMATS and mime not in _MISSPELT:
        raise CovistError(f"{place} must be a data URL: data:image/png;base64,... ({', '.join(FORMATS)})")
    return encoded


def decode_base64(text: str, place: str) -> bytes:
    """The bytes of a base64 text; refuses anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CovistError(f"{place} is not valid base64") from None
