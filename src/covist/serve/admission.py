"""What happens to a request before it waits for the model: checked, its images fetched and decoded, its prompt made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from PIL import Image

from covist.api.setup import Setup
from covist.budget import require_room
from covist.errors import CovistError
from covist.request.messages import Medium
from covist.request.stream import Stream
from covist.request.videos import Video
from covist.serve.capacity import Capacity
from covist.serve.constraint import Constraints
from covist.serve.errors import Refusal, draining, gone, unknown_model
from covist.serve.fetch import Fetcher
from covist.serve.images import Encoded, ImageReader, Source, numbered
from covist.serve.limits import Limits
from covist.serve.prompts import ChatPrompt, PromptMaker
from covist.serve.room import Room, RoomClaim
from covist.serve.schema import ChatRequest, CompressionChoice, JsonObjectFormat, JsonSchemaFormat
from covist.serve.tools import call_schema, must_call, offered
from covist.serve.videos import EncodedVideo

PREPARING_THREADS = 8
Result = TypeVar("Result")


@dataclass(frozen=True)
class Admitted:
    """A request that is ready for the model.

    max_tokens: of its answer
    schema: what the answer must look like, compiled; None if it may be any text
    """

    setup: Setup
    prompt: ChatPrompt
    max_tokens: int
    schema: Any = None


class Admission:
    """Turns requests into prompts. Only work that needs a processor takes a thread; hosts are waited for without one.

    name: that requests must give
    settings: the setup that a client's choice stands for
    room: bytes for images that are fetched
    """

    def __init__(
        self,
        name: str,
        prompts: PromptMaker,
        settings: Callable[[CompressionChoice | None], Setup],
        fetcher: Fetcher,
        limits: Limits,
        room: Room,
        capacity: Capacity,
        constraints: Constraints,
    ):
        self._name, self._prompts, self._settings, self._limits, self._room = name, prompts, settings, limits, room
        self._fetcher, self._images = fetcher, ImageReader(limits, fetcher)
        self._capacity, self._constraints = capacity, constraints
        self._pixels = Room(limits.pixels_at_once)
        self._threads = ThreadPoolExecutor(PREPARING_THREADS, "covist-prepare")

    async def prepare(self, wanted: ChatRequest) -> Admitted:
        """Check a request, cheap checks first, and make its prompt; cancelling it frees what it has taken."""
        left = threading.Event()
        try:
            with RoomClaim(self._room, "bytes of images") as claim:
                setup, media = await self._run(self._checked, wanted)
                schema = await self._compiled(wanted)
                sources = await self._images.fetched(media, claim)
                encoded = await self._run(self._images.measured, sources)
                pixels = sum(medium.pixels for medium in encoded)
                await self._pixels.wait(pixels)
                free = partial(self._pixels.free, pixels)
                prompt = await self._run(self._made, wanted, setup, encoded, left, after=free)
                return Admitted(setup, prompt, self._answer_tokens(wanted, prompt), schema)
        except asyncio.CancelledError:
            left.set()  # for the thread, which cannot be cancelled
            raise

    async def frame(self, url: str) -> Image.Image | Video:
        """A frame of a stream, from a data URL, within the limits of images."""
        (encoded,) = await self._run(self._images.measured, [Source("image", "frame", url)])
        await self._pixels.wait(encoded.pixels)
        free = partial(self._pixels.free, encoded.pixels)
        return await self._run(self._images.decoded, encoded, after=free)

    def stream_tokens(self, stream: Stream, question: str, asked: int | None) -> int:
        """The longest answer to a question about a stream; no text has more tokens than characters."""
        self._prompts.check_texts({"question": question}, "question")
        shown = stream.report
        length, kept = (tokens + len(question) for tokens in (shown.tokens, len(shown.kept)))
        return self._capacity.answer_tokens(self._limits, length, kept, asked)

    def prepare_here(self, wanted: ChatRequest) -> ChatPrompt:
        """The prompt, made in the thread of the caller, of a request whose images are data URLs."""
        setup, media = self._checked(wanted)
        prompt = self._made(wanted, setup, self._images.measured(numbered(media)), threading.Event())
        self._answer_tokens(wanted, prompt)
        return prompt

    def close(self) -> None:
        """Prepare no more requests; those that wait for a thread are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._fetcher.close()

    async def _run(self, work: Callable[..., Result], *given: Any, after: Callable[[], None] = lambda: None) -> Result:
        """Run `work` in a thread. `after` is called when the thread has finished, even if nobody waits for it then."""
        loop = asyncio.get_running_loop()

        def finish(future: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                loop.call_soon_threadsafe(after)

        try:
            future = self._threads.submit(work, *given)
        except RuntimeError:  # closed
            finish(None)
            raise draining() from None
        future.add_done_callback(finish)
        return await asyncio.wrap_future(future)

    def _checked(self, wanted: ChatRequest) -> tuple[Setup, list[Medium]]:
        """The setup of a request, and its images and videos."""
        if wanted.model != self._name:
            raise unknown_model(wanted.model, self._name)
        if (wanted.n or 1) > self._limits.choices:
            raise Refusal(400, "invalid_request", f"n: more than {self._limits.choices} choices", param="n")
        if wanted.top_logprobs is not None and not wanted.logprobs:
            message = "top_logprobs: set logprobs to true, too"
            raise Refusal(400, "invalid_request", message, param="top_logprobs")
        try:
            setup = self._settings(wanted.covist)
            media = self._prompts.check(wanted.messages, offered(wanted))
            require_room(len(media), setup.budget, setup.max_visual_tokens)
        except CovistError as error:
            raise Refusal(400, "bad_setting", f"covist: {error}", param="covist") from None
        return setup, media

    async def _compiled(self, wanted: ChatRequest) -> Any:
        """What the answer must look like, ready for the model; None if it may be any text."""
        if tools := must_call(wanted):
            return await self._constraints.compile(call_schema(tools), is_strict=False)
        if isinstance(wanted.response_format, JsonSchemaFormat):
            given = wanted.response_format.json_schema
            return await self._constraints.compile(given.shape, is_strict=bool(given.strict))
        if isinstance(wanted.response_format, JsonObjectFormat):
            return await self._constraints.compile({"type": "object"}, is_strict=True)
        return None

    def _made(
        self,
        wanted: ChatRequest,
        setup: Setup,
        encoded: Sequence[Encoded | EncodedVideo],
        left: threading.Event,
    ) -> ChatPrompt:
        """The prompt of a checked request; stops between two images or frames once the client has `left`."""

        def check() -> None:
            if left.is_set():
                raise gone()

        shown = []
        for medium in encoded:
            check()
            shown.append(self._images.decoded(medium, check))
        budget = setup.budget if setup.min_coverage is None else None  # images may run uncompressed
        cap = setup.max_visual_tokens
        prompt = self._prompts.make(wanted.messages, shown, budget, offered(wanted), cap)
        if setup.is_plain and cap is not None and prompt.visual_tokens > cap:
            problem = f"{prompt.visual_tokens:,} visual tokens, and without compression {cap:,} are allowed"
            raise Refusal(400, "prompt_too_long", f"the prompt has {problem}", param="covist")
        return prompt

    def _answer_tokens(self, wanted: ChatRequest, prompt: ChatPrompt) -> int:
        asked = wanted.max_completion_tokens or wanted.max_tokens
        return self._capacity.answer_tokens(self._limits, prompt.length, prompt.kept_tokens, asked)
