"""The body of a request, limited in size and time before anything is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from covist.serve.errors import Refusal
from covist.serve.limits import Limits

GONE = 499
"""Status in the log if the client has disconnected (nginx's convention)."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the whole body; raises a `Refusal` if it is too large, too slow or incomplete."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limits.body_bytes:
        raise _too_large(limits)
    try:
        return await asyncio.wait_for(_collect(request.stream(), limits), limits.body_seconds)
    except asyncio.TimeoutError:
        message = f"the body did not arrive within {limits.body_seconds:g} seconds"
        raise Refusal(408, "slow_body", message, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise Refusal(GONE, "disconnected", "the client disconnected before its body was complete") from None


async def _collect(stream: AsyncIterator[bytes], limits: Limits) -> bytes:
    body = bytearray()
    async for chunk in stream:
        body += chunk
        if len(body) > limits.body_bytes:
            raise _too_large(limits)
    return bytes(body)


def _too_large(limits: Limits) -> Refusal:
    message = f"the body is larger than {limits.body_bytes:,} bytes"
    return Refusal(413, "body_too_large", message, headers={"Connection": "close"})
