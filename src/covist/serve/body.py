"""The body of a request, limited in size, in values and in time before anything is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from covist.serve.errors import GONE, Refusal
from covist.serve.limits import Limits
from covist.serve.room import RoomClaim

BEFORE_VALUES = (b",", b"[", b"{")
"""One of these stands before every value of a JSON document but the first, so counting them limits the values."""
FIELDS = 20_000
"""Such characters that all fields besides the text of messages may have."""


async def read_body(request: Request, limits: Limits, claim: RoomClaim | None = None) -> bytearray:
    """Read the whole body; raises a `Refusal` if it is too large, too slow or incomplete, or if `claim` cannot grow."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise closing_refusal(400, "encoded_body", "the body must not be compressed: leave Content-Encoding out")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limits.body_bytes:
        raise _too_large(limits)
    try:
        return await asyncio.wait_for(_collect(request.stream(), limits, claim), limits.body_seconds)
    except asyncio.TimeoutError:
        message = f"the body did not arrive within {limits.body_seconds:g} seconds"
        raise closing_refusal(408, "slow_body", message) from None
    except ClientDisconnect:
        raise Refusal(GONE, "disconnected", "the client disconnected before its body was complete") from None
    except Refusal as refusal:
        refusal.headers["Connection"] = "close"  # the rest of the body is not read
        raise


async def _collect(stream: AsyncIterator[bytes], limits: Limits, claim: RoomClaim | None) -> bytearray:
    body, values = bytearray(), 0
    async for chunk in stream:
        if claim is not None:
            claim.grow(len(chunk))
        body += chunk
        if len(body) > limits.body_bytes:
            raise _too_large(limits)
        values += sum(map(chunk.count, BEFORE_VALUES))
        if values > limits.prompt_characters + FIELDS:
            raise closing_refusal(400, "too_many_values", "the body has more values than a request within the limits")
    return body


def _too_large(limits: Limits) -> Refusal:
    return closing_refusal(413, "body_too_large", f"the body is larger than {limits.body_bytes:,} bytes")


def closing_refusal(status: int, reason: str, message: str) -> Refusal:
    """A refusal before the body has been read to its end."""
    return Refusal(status, reason, message, headers={"Connection": "close"})
