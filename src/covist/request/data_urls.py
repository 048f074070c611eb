"""Images inside the request itself: data URLs and base64."""

from __future__ import annotations

import base64
import binascii
import re

from covist.errors import CovistError

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
"""The formats that OpenAI accepts; a data URL never reaches other decoders of Pillow."""
MISSPELT = {"image/jpg": "image/jpeg"}
_HEAD = re.compile(r"data:([\w.+/-]*)((?:;[\w.=-]+)*),", re.ASCII)


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def split_data_url(url: str, place: str) -> tuple[str, str]:
    """The Pillow format and the base64 text of a data URL; `place` names the field in messages.

    >>> split_data_url("data:image/png;base64,aGk=", "image")
    ('PNG', 'aGk=')
    >>> split_data_url("data:image/jpg;base64,aGk=", "image")
    ('JPEG', 'aGk=')
    """
    head = _HEAD.match(url[:256])
    mime = head[1].lower() if head else ""
    kind = FORMATS.get(MISSPELT.get(mime, mime))
    if head is None or kind is None or not head[2].lower().endswith(";base64"):
        raise CovistError(f"{place} must be a data URL: data:image/png;base64,... ({', '.join(FORMATS)})")
    return kind, url[head.end() :]


def decode_base64(text: str, place: str) -> bytes:
    """The bytes of a base64 text; refuses anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CovistError(f"{place} is not valid base64") from None
