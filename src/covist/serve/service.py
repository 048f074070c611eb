"""The server without HTTP: a model, its compression, a queue and the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from time import monotonic

from covist.api.compress import compress
from covist.api.setup import DEFAULT, Setup
from covist.request.batches import end_tokens
from covist.request.inputs import unknown_words
from covist.request.loading import LoadedModel
from covist.serve.admission import Admission, Admitted
from covist.serve.answers import ChatAnswer
from covist.serve.batches import Workers
from covist.serve.capacity import Capacity
from covist.serve.constraint import Constraints
from covist.serve.fetch import Fetcher
from covist.serve.job import LocalJob
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.metrics import Metrics
from covist.serve.presence import within
from covist.serve.prompts import PromptMaker
from covist.serve.queue import Queue
from covist.serve.room import Room
from covist.serve.sampling import Sampling
from covist.serve.schema import ChatRequest
from covist.serve.sequence import Event, Sequence
from covist.serve.settings import setup_of
from covist.serve.streams import Streams


class Service:
    """Answers requests with one model, from construction until `close()`."""

    def __init__(
        self,
        loaded: LoadedModel,
        setup: Setup = DEFAULT,
        *,
        name: str | None = None,
        limits: Limits | None = None,
        keys: Keys | None = None,
        image_hosts: Collection[str] = (),
        temperature: float = 0.0,
    ):
        """`name` is the one that clients give; `setup` and `temperature` are those of requests that choose none."""
        self.limits, self.keys = limits or Limits(), keys or Keys()
        self.name = name or Path(loaded.name).name
        self.metrics, self.room = Metrics(), Room(self.limits.bytes_at_once)
        self.is_draining = False
        self._temperature = temperature
        self._loaded = loaded
        self._handle = compress(loaded.model, loaded.processor, config=setup, clip=loaded.clip, per_call=True)
        self.default = setup_of(self._handle, None)
        """The setup of requests that choose none."""
        prompts = PromptMaker(loaded, self.limits)
        fetcher = Fetcher(image_hosts, self.limits)
        settings = partial(setup_of, self._handle)
        decoder = self._handle.settings.decoder
        capacity = Capacity.of(loaded.model, decoder.kv_bytes([1] * decoder.layers))
        vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
        self._constraints = Constraints(prompts.tokenizer, vocabulary, end_tokens(loaded.model))
        self._admission = Admission(
            self.name, prompts, settings, fetcher, self.limits, self.room, capacity, self._constraints
        )
        self._queue = Queue(self.limits, capacity.batch_tokens(self.limits))
        note_batch = self.metrics.sizes("covist_batch_size", "Answers per batch.")
        self._workers = Workers(loaded, self._handle, prompts, self._queue, self.limits, note_batch)
        self.streams = Streams(loaded, self._handle, self._workers.turns, prompts, self._admission, self.limits)
        self.metrics.watch("covist_streams", "Open streams.", lambda: self.streams.open)
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
        admitted = await within(deadline, self._admission.prepare(wanted))
        job = LocalJob(wanted.n or 1, partial(self._sequence, wanted, admitted, arrived), deadline)
        self._queue.put(job.sequences)
        return job, ChatAnswer.to(wanted, self.name, admitted.setup, admitted.prompt.length, arrived)

    def visual_tokens(self, wanted: ChatRequest) -> int:
        """Positions that the images of a request take before compression; the request is checked as usual."""
        return self._admission.prepare_here(wanted).visual_tokens

    def unknown_words(self, text: str) -> list[str]:
        """Words that are not in the model's vocabulary, which may be small."""
        return unknown_words(self._loaded, text)

    def close(self) -> None:
        """Finish the answers within the time for it, end the others, and restore the uncompressed model.

        If the service is draining already, that time has passed.
        """
        seconds, self.is_draining = 0.0 if self.is_draining else self.limits.drain_seconds, True
        self._admission.close()
        self._workers.close(seconds, self._handle.remove)

    def _sequence(
        self, wanted: ChatRequest, admitted: Admitted, arrived: float, index: int, listen: Callable[[Event], None]
    ) -> Sequence:
        """Choice number `index` of a request; each has its own seed."""
        schema = admitted.schema
        return Sequence(
            admitted.prompt,
            admitted.setup,
            listen,
            admitted.max_tokens,
            self._sampling(wanted, index),
            wanted.stops,
            None if schema is None else self._constraints.start(schema),
            arrived,
        )

    def _sampling(self, wanted: ChatRequest, index: int) -> Sampling:
        return Sampling(
            temperature=self._temperature if wanted.temperature is None else wanted.temperature,
            top_p=wanted.top_p or 1.0,
            seed=None if wanted.seed is None else wanted.seed + index,
            top_k=wanted.top_k if wanted.top_k and wanted.top_k > 0 else None,
            min_p=wanted.min_p or 0.0,
            repetition_penalty=wanted.repetition_penalty or 1.0,
            frequency_penalty=wanted.frequency_penalty or 0.0,
            presence_penalty=wanted.presence_penalty or 0.0,
            logprobs=wanted.top_logprobs or 0 if wanted.logprobs else None,
        )
