"""The server without HTTP: a model, its compression, a queue and the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from time import monotonic

from covist.api.compress import compress
from covist.api.setup import DEFAULT, Setup
from covist.request.loading import LoadedModel
from covist.serve.admission import Admission
from covist.serve.answers import ChatAnswer
from covist.serve.batches import Workers
from covist.serve.fetch import Fetcher
from covist.serve.job import LocalJob
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.metrics import Metrics
from covist.serve.presence import within
from covist.serve.prompts import ChatPrompt, PromptMaker
from covist.serve.queue import Queue
from covist.serve.room import Room
from covist.serve.sampling import Sampling
from covist.serve.schema import ChatRequest
from covist.serve.sequence import Event, Sequence
from covist.serve.settings import setup_of


class Service:
    """Answers requests with one model, from construction until `close()`."""

    def __init__(
        self,
        loaded: LoadedModel,
        setup: Setup = DEFAULT,
        *,
        limits: Limits | None = None,
        keys: Keys | None = None,
        image_hosts: Collection[str] = (),
        temperature: float = 0.0,
    ):
        """`setup` and `temperature` are those of requests that choose none."""
        self.limits, self.keys = limits or Limits(), keys or Keys()
        self.name = Path(loaded.name).name
        self.metrics, self.room = Metrics(), Room(self.limits.bytes_at_once)
        self.is_draining = False
        self._temperature = temperature
        self._handle = compress(loaded.model, loaded.processor, config=setup, clip=loaded.clip, per_call=True)
        self.default = setup_of(self._handle, None)
        """The setup of requests that choose none."""
        prompts = PromptMaker(loaded, self.limits)
        fetcher = Fetcher(image_hosts, self.limits)
        settings = partial(setup_of, self._handle)
        self._admission = Admission(loaded, self.name, prompts, settings, fetcher, self.limits, self.room)
        self._queue = Queue(self.limits)
        note_batch = self.metrics.sizes("covist_batch_size", "Answers per batch.")
        self._workers = Workers(loaded, self._handle, prompts, self._queue, self.limits, note_batch)
        self.metrics.watch("covist_queue", "Waiting answers.", lambda: len(self._queue))
        self.metrics.watch("covist_running", "Answers being generated.", lambda: self._workers.running)

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return not self.is_draining and self._workers.is_alive

    @property
    def is_healthy(self) -> bool:
        """False after an accelerator error, which only a new process recovers from."""
        return not self._workers.is_broken

    async def admit(self, wanted: ChatRequest, deadline: float | None = None) -> tuple[LocalJob, ChatAnswer]:
        """Check and prepare a request, and put it into the queue.

        deadline: of the whole request, as a time of the event loop; by default the limit from now on
        """
        arrived, now = monotonic(), asyncio.get_running_loop().time()
        deadline = now + self.limits.request_seconds if deadline is None else deadline
        self._queue.check_room(1)
        setup, prompt = await within(deadline, self._admission.prepare(wanted))
        choices = wanted.n or 1
        job = LocalJob(choices, partial(self._sequence, wanted, prompt, setup, arrived), deadline)
        self._queue.put(job.sequences)
        return job, ChatAnswer(self.name, setup, prompt.length, choices, arrived)

    def visual_tokens(self, wanted: ChatRequest) -> int:
        """Positions that the images of a request take before compression; the request is checked as usual."""
        return self._admission.prepare_here(wanted)[1].visual_tokens

    def close(self) -> None:
        """Finish the answers within the time for it, end the others, and restore the uncompressed model.

        If the service is draining already, that time has passed.
        """
        seconds, self.is_draining = 0.0 if self.is_draining else self.limits.drain_seconds, True
        self._admission.close()
        self._workers.close(seconds, self._handle.remove)

    def _sequence(
        self,
        wanted: ChatRequest,
        prompt: ChatPrompt,
        setup: Setup,
        arrived: float,
        index: int,
        listen: Callable[[Event], None],
    ) -> Sequence:
        """Choice number `index` of a request; each has its own seed."""
        temperature = self._temperature if wanted.temperature is None else wanted.temperature
        seed = None if wanted.seed is None else wanted.seed + index
        sampling = Sampling(temperature, wanted.top_p or 1.0, seed)
        return Sequence(prompt, setup, listen, self._admission.output_tokens(wanted), sampling, wanted.stops, arrived)
