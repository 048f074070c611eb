"""Answers of the service while they are generated, several at once."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covist.budget import Plain
from covist.request.data_urls import FORMATS
from covist.serve.errors import Refusal, error_body
from covist.serve.logs import LOG, log
from covist.serve.schema import ChatRequest, parse_chat
from covist.serve.sequence import Finished, Written
from covist.serve.service import Service

UNEXPECTED = "unexpected error in the server; see its log"
UNCOMPRESSED = {"budget": str(Plain())}
_BEGINNINGS = {
    "PNG": rb"\x89PNG",
    "JPEG": rb"\xff\xd8",
    "GIF": rb"GIF8",
    "WEBP": rb"RIFF.{4}WEBP",
    "AVIF": rb".{4}ftypavi[fs]",
    "HEIC": rb".{4}ftyp(?:he[ivx]|mif1|msf1)",
    "TIFF": rb"II\*\0|MM\0\*",
    "BMP": rb"BM.{4}\0{4}",
    "PDF": rb"%PDF",
    "SVG": rb"(?:\xef\xbb\xbf)?\s*<(?:[?!][^\0]*?<)?svg\b",
}
"""How files begin, as regular expressions: those that the page reads, and others that visitors may take for images."""


@dataclass(frozen=True)
class Reply:
    """An answer as far as it has been generated."""

    text: str = ""
    end: Finished | None = None
    refusal: str | None = None  # why there is no answer, in a sentence

    @property
    def is_done(self) -> bool:
        return self.end is not None or self.refusal is not None


def make_request(model: str, image: str | Path | None, question: str, compression: dict[str, Any]) -> ChatRequest:
    """A question about an image file as a client would send it, so that the same checks apply."""
    shown = [] if image is None else [{"type": "image_url", "image_url": {"url": data_url(Path(image).read_bytes())}}]
    content = [*shown, {"type": "text", "text": question}]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "covist": compression}
    return parse_chat(json.dumps(body).encode())


def data_url(data: bytes) -> str:
    """An image file as a data URL, with the type that its first bytes show; other files are refused by their name."""
    kinds = {name: mime for mime, name in FORMATS.items()}
    head = data[:1024]
    found = next((name for name, start in _BEGINNINGS.items() if re.match(start, head, re.DOTALL)), "")
    if found not in kinds:
        *most, last = kinds
        readable = f"{', '.join(most)} or {last}"
        problem = f"a file in {found} format; save it as {readable}" if found else f"not an image in {readable} format"
        raise Refusal(400, "image_format", f"the image is {problem}")
    return f"data:{kinds[found]};base64,{b64encode(data).decode()}"


async def ask_together(service: Service, requests: Sequence[ChatRequest]) -> AsyncIterator[list[Reply]]:
    """All answers, each time one of them has grown; closing the iterator cancels those that are not finished."""
    replies = [Reply()] * len(requests)
    changed = asyncio.Event()

    async def write(place: int, request: ChatRequest) -> None:
        async for reply in _ask(service, request):
            replies[place] = reply
            changed.set()

    writing = [asyncio.create_task(write(*pair)) for pair in enumerate(requests)]
    try:
        shown = list(replies)
        while not all(reply.is_done for reply in shown):  # not `replies`: all may end while a slow page draws
            await changed.wait()
            changed.clear()
            shown = list(replies)
            yield shown
    finally:
        for task in writing:
            task.cancel()


async def _ask(service: Service, request: ChatRequest) -> AsyncIterator[Reply]:
    """One answer as it grows; the last reply has its end, or the reason for the refusal."""
    reply = Reply()
    try:
        job, answer = await service.admit(request)
        async with aclosing(job.follow()) as events:  # frees its place in any case
            async for index, event in events:
                answer.add(index, event)
                if isinstance(event, Written):
                    reply = replace(reply, text=reply.text + event.text)
                elif isinstance(event, Finished):
                    reply = replace(reply, end=event)
                    service.metrics.answered(answer)
                    log("page", **answer.figures)
                yield reply
    except Refusal as refusal:
        service.metrics.refused(refusal.reason)
        yield replace(reply, refusal=as_sentence(refusal))
    except Exception:
        LOG.exception("the page got no answer")
        yield replace(reply, refusal=as_sentence(Refusal(500, "unexpected", UNEXPECTED)))


def as_sentence(refusal: Refusal) -> str:
    """A refusal as a sentence for visitors, without the names of request fields.

    >>> as_sentence(Refusal(400, "invalid_request", "messages.0: the message is empty"))
    'The message is empty.'
    """
    line = str(error_body(refusal.status, refusal.message)["error"]["message"])
    for field in ("messages.0: ", "messages: ", "covist: "):
        line = line.removeprefix(field)
    line = line.replace("messages.0", "the question").replace("image 1", "the image")
    return line[:1].upper() + line[1:].rstrip(".") + "."
