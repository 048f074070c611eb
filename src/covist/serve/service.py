"""The server without HTTP: a model, its compression, a queue and the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic

from covist.api.compress import compress
from covist.api.setup import Setup
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.methods.create import create_method
from covist.request.loading import LoadedModel
from covist.serve.answers import Answer
from covist.serve.batches import Workers
from covist.serve.errors import Refusal
from covist.serve.fetch import Fetcher
from covist.serve.images import ImageReader
from covist.serve.job import LocalJob
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.metrics import Metrics
from covist.serve.prompts import Prompt, PromptMaker
from covist.serve.queue import Queue
from covist.serve.sampling import Sampling
from covist.serve.schema import ChatRequest
from covist.serve.sequence import Event, Sequence
from covist.serve.settings import Setting, SettingBook

PREPARING_THREADS = 8


class Service:
    """Answers requests with one model, from construction until `close()`."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        budget: int | float | str = 64,
        method: str = "covist-fixed",
        config: CovistConfig | Setup | None = None,
        min_coverage: float | None = None,
        concentration: float | None = None,
        limits: Limits | None = None,
        keys: Keys | None = None,
        image_hosts: Collection[str] = (),
        temperature: float = 0.0,
    ):
        """`concentration` is CoViST's frozen reference; `temperature` is that of requests that give none."""
        self.limits, self.keys = limits or Limits(), keys or Keys()
        self.name = Path(loaded.name).name
        self.metrics = Metrics()
        self.is_draining = False
        self._temperature = temperature
        self._longest = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
        frozen = concentration if create_method(method).tracker is not None else None
        self._handle = compress(
            loaded.model,
            loaded.processor,
            budget=budget,
            method=method,
            config=config,
            min_coverage=min_coverage,
            clip=loaded.clip,
            concentration=frozen,
            per_call=True,
        )
        self._settings = SettingBook(self._handle, concentration, Setup.of(config))
        self._images = ImageReader(self.limits, Fetcher(image_hosts, self.limits))
        self._prompts = PromptMaker(loaded, self.limits)
        self._queue = Queue(self.limits)
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, "covist-prepare")
        note_batch = self.metrics.sizes("covist_batch_size", "Answers per batch.")
        self._workers = Workers(loaded, self._handle, self._prompts, self._queue, self.limits, note_batch)
        self.metrics.watch("covist_queue", "Waiting answers.", lambda: len(self._queue))
        self.metrics.watch("covist_running", "Answers being generated.", lambda: self._workers.running)

    @property
    def default(self) -> Setting:
        """The setting of requests that choose none."""
        return self._settings.default

    @property
    def is_ready(self) -> bool:
        return not self.is_draining and self._workers.is_alive

    async def admit(self, wanted: ChatRequest) -> tuple[LocalJob, Answer]:
        """Check and prepare a request, and put it into the queue."""
        arrived, loop = monotonic(), asyncio.get_running_loop()
        deadline = loop.time() + self.limits.request_seconds
        self._queue.check_room(1)
        setting, prompt = await loop.run_in_executor(self._preparing, self._prepare, wanted)
        choices = wanted.n or 1
        job = LocalJob(choices, partial(self._sequence, wanted, prompt, setting, arrived), deadline)
        self._queue.put(job.sequences)
        return job, Answer(self.name, setting, prompt.length, choices, arrived)

    def visual_tokens(self, wanted: ChatRequest) -> int:
        """Positions that the images of a request take before compression; the request is checked as usual."""
        return self._prepare(wanted)[1].visual_tokens

    def close(self) -> None:
        """Finish running answers within the time limit, and restore the uncompressed model."""
        self.is_draining = True
        self._workers.close(self.limits.drain_seconds)
        self._preparing.shutdown(wait=False, cancel_futures=True)
        self._handle.remove()

    def _prepare(self, wanted: ChatRequest) -> tuple[Setting, Prompt]:
        """Check a request, cheap checks first, and prepare its prompt."""
        if wanted.model != self.name:
            raise Refusal(
                404, "model_not_found", f"no model {wanted.model!r} here; the model is {self.name!r}", param="model"
            )
        if (wanted.n or 1) > self.limits.choices:
            raise Refusal(400, "invalid_request", f"n: more than {self.limits.choices} choices", param="n")
        self._check_output(wanted)
        setting = self._checked_setting(wanted)
        urls = self._prompts.check(wanted.messages)
        images = [self._images.read(url, f"image {number}") for number, url in enumerate(urls, 1)]
        prompt = self._prompts.make(wanted.messages, images)
        if self._longest is not None and prompt.length + self._output(wanted) > self._longest:
            message = f"prompt and answer need more than the {self._longest:,} positions of the model"
            raise Refusal(400, "prompt_too_long", message, param="messages")
        return setting, prompt

    def _checked_setting(self, wanted: ChatRequest) -> Setting:
        try:
            return self._settings.resolve(wanted.covist)
        except CovistError as error:
            raise Refusal(400, "bad_setting", f"covist: {error}", param="covist") from None

    def _check_output(self, wanted: ChatRequest) -> None:
        if self._output(wanted) > self.limits.output_tokens:
            message = f"max_tokens: at most {self.limits.output_tokens:,} here"
            raise Refusal(400, "invalid_request", message, param="max_tokens")

    def _output(self, wanted: ChatRequest) -> int:
        asked = wanted.max_completion_tokens or wanted.max_tokens
        return asked or min(self.limits.default_output_tokens, self.limits.output_tokens)

    def _sequence(
        self,
        wanted: ChatRequest,
        prompt: Prompt,
        setting: Setting,
        arrived: float,
        index: int,
        listen: Callable[[Event], None],
    ) -> Sequence:
        """Choice number `index` of a request; each has its own seed."""
        temperature = self._temperature if wanted.temperature is None else wanted.temperature
        seed = None if wanted.seed is None else wanted.seed + index
        sampling = Sampling(temperature, wanted.top_p or 1.0, seed)
        return Sequence(prompt, setting, listen, self._output(wanted), sampling, wanted.stops, arrived)
