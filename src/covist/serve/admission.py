"""What happens to a request before it waits for the model: checked, its images fetched and decoded, its prompt made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from covist.api.setup import Setup
from covist.errors import CovistError
from covist.request.loading import LoadedModel
from covist.serve.errors import Refusal, draining, gone
from covist.serve.fetch import Fetcher
from covist.serve.images import Encoded, ImageReader
from covist.serve.limits import Limits
from covist.serve.prompts import ChatPrompt, PromptMaker
from covist.serve.room import Room, RoomClaim
from covist.serve.schema import ChatRequest, CompressionChoice

PREPARING_THREADS = 8
Result = TypeVar("Result")


class Admission:
    """Turns requests into prompts. Only work that needs a processor takes a thread; hosts are waited for without one.

    name: that requests must give
    settings: the setup that a client's choice stands for
    room: bytes for images that are fetched
    """

    def __init__(
        self,
        loaded: LoadedModel,
        name: str,
        prompts: PromptMaker,
        settings: Callable[[CompressionChoice | None], Setup],
        fetcher: Fetcher,
        limits: Limits,
        room: Room,
    ):
        self._name, self._prompts, self._settings, self._limits, self._room = name, prompts, settings, limits, room
        self._fetcher, self._images = fetcher, ImageReader(limits, fetcher)
        self._longest = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
        self._pixels = Room(limits.pixels_at_once)
        self._threads = ThreadPoolExecutor(PREPARING_THREADS, "covist-prepare")

    async def prepare(self, wanted: ChatRequest) -> tuple[Setup, ChatPrompt]:
        """Check a request, cheap checks first, and make its prompt; cancelling it frees what it has taken."""
        left = threading.Event()
        try:
            with RoomClaim(self._room, "bytes of images") as claim:
                setup, urls = await self._run(self._checked, wanted)
                images = await self._run(self._images.measured, await self._images.fetched(urls, claim))
                pixels = sum(image.pixels for image in images)
                await self._pixels.wait(pixels)
                free = partial(self._pixels.free, pixels)
                return setup, await self._run(self._made, wanted, images, left, after=free)
        except asyncio.CancelledError:
            left.set()  # for the thread, which cannot be cancelled
            raise

    def prepare_here(self, wanted: ChatRequest) -> tuple[Setup, ChatPrompt]:
        """The same in the thread of the caller, for a request whose images are data URLs."""
        setup, urls = self._checked(wanted)
        return setup, self._made(wanted, self._images.measured(urls), threading.Event())

    def output_tokens(self, wanted: ChatRequest) -> int:
        """The longest answer to a request."""
        asked = wanted.max_completion_tokens or wanted.max_tokens
        return asked or min(self._limits.default_output_tokens, self._limits.output_tokens)

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

    def _checked(self, wanted: ChatRequest) -> tuple[Setup, list[str]]:
        """The setup of a request, and the URLs of its images."""
        if wanted.model != self._name:
            message = f"no model {wanted.model!r} here; the model is {self._name!r}"
            raise Refusal(404, "model_not_found", message, param="model")
        if (wanted.n or 1) > self._limits.choices:
            raise Refusal(400, "invalid_request", f"n: more than {self._limits.choices} choices", param="n")
        if self.output_tokens(wanted) > self._limits.output_tokens:
            message = f"max_tokens: at most {self._limits.output_tokens:,} here"
            raise Refusal(400, "invalid_request", message, param="max_tokens")
        try:
            setup = self._settings(wanted.covist)
        except CovistError as error:
            raise Refusal(400, "bad_setting", f"covist: {error}", param="covist") from None
        return setup, self._prompts.check(wanted.messages)

    def _made(self, wanted: ChatRequest, encoded: Sequence[Encoded], left: threading.Event) -> ChatPrompt:
        """The prompt of a checked request; stops between two images once the client has `left`."""
        images = []
        for image in encoded:
            if left.is_set():
                raise gone()
            images.append(self._images.decoded(image))
        prompt = self._prompts.make(wanted.messages, images)
        if self._longest is not None and prompt.length + self.output_tokens(wanted) > self._longest:
            message = f"prompt and answer need more than the {self._longest:,} positions of the model"
            raise Refusal(400, "prompt_too_long", message, param="messages")
        return prompt
