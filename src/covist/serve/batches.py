"""Workers that run batches through `model.generate`, taking turns token by token.

transformers' continuous batching takes only token ids and no images, so prompts cannot join a running batch. Instead,
batches are bounded and share the model: after every token the next batch has its turn, so a long answer never delays a
short one by more than one step. Both hooks are official extension points of `generate`: a logits processor draws each
row's token, a stopping criterion passes it on and ends rows.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from covist.api.handle import Compression, UsingBlock
from covist.api.report import Report
from covist.report.films import whole_videos
from covist.request.batches import end_tokens
from covist.request.decoding import generate
from covist.request.halving import Failure, in_halves, is_refusal
from covist.request.loading import LoadedModel
from covist.serve.errors import Refusal, broken, draining
from covist.serve.limits import Limits
from covist.serve.prompts import PromptMaker
from covist.serve.queue import Queue
from covist.serve.sampling import RowSampler
from covist.serve.sequence import PromptCost, RunningSequence, Sequence
from covist.serve.turns import Turns

LAST_STEP_SECONDS = 5.0
"""How long a shutdown waits for the step that was running when it ended the answers."""
_LOG = logging.getLogger("covist.serve")


class Workers:
    """Threads that take batches from the queue until it is closed and empty."""

    def __init__(
        self,
        loaded: LoadedModel,
        handle: Compression,
        prompts: PromptMaker,
        queue: Queue,
        limits: Limits,
        seen: Callable[[int], None] = lambda size: None,
    ):
        """`seen` is called with the size of every batch."""
        self._model, self._handle, self._prompts, self._queue = loaded.model, handle, prompts, queue
        self._seen = seen
        self.turns = Turns()
        self._ends = end_tokens(loaded.model)
        self._changed = threading.Condition()
        self._running: list[RunningSequence] = []
        self._stopped: Callable[[], None] | None = None
        self.is_broken = False
        """Whether the accelerator is lost, so that only a new process can answer."""
        self._threads = {
            threading.Thread(target=self._work, name="covist-batches", daemon=True) for _ in range(limits.batches)
        }
        for thread in list(self._threads):
            thread.start()

    @property
    def running(self) -> int:
        """The number of answers being generated."""
        return sum(not row.is_done for row in list(self._running))

    @property
    def is_alive(self) -> bool:
        """Whether answers are still generated."""
        return bool(self._threads) and not self.is_broken

    def close(self, seconds: float, stopped: Callable[[], None]) -> None:
        """Finish waiting and running answers; those not done after `seconds` are ended.

        stopped: called when the last thread has stopped, which is later if its step hangs; then nobody waits for it
        """
        self._queue.close()
        with self._changed:
            self._stopped = stopped
            if not self._threads:
                stopped()
            if self._changed.wait_for(lambda: not self._threads, seconds):
                return
        self._queue.clear(draining())
        with self._changed:
            for row in self._running:
                row.sequence.fail(draining())
            if not self._changed.wait_for(lambda: not self._threads, LAST_STEP_SECONDS):
                _LOG.error("a generation did not stop")

    def _work(self) -> None:
        try:
            while self._queue.wait():
                with self.turns:
                    batch = self._queue.take()  # only now, so that a batch can grow while the model is busy
                    if batch:
                        self._run(batch)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                if not self._threads and self._stopped is not None:
                    self._stopped()
                self._changed.notify_all()

    def _run(self, batch: list[Sequence]) -> None:
        """Run a batch; a row that fails is alone with it, unless the accelerator is lost."""
        rows = [RunningSequence(sequence, self._prompts.tokenizer, self._ends) for sequence in batch]
        self._seen(len(rows))
        with self._changed:
            self._running += rows
        try:
            for outcome in in_halves(rows, self._generate, _log_failure):
                if outcome.failure is not None:
                    outcome.items[0].fail(_told(outcome.failure))
        except Exception as error:
            _log_failure(error, rows)
            self.is_broken = True
            self._queue.clear(broken())
            for row in rows:
                row.fail(broken())
        finally:
            with self._changed:
                self._running = [row for row in self._running if row not in rows]

    def _generate(self, batch: Collection[RunningSequence]) -> None:
        rows = [row for row in batch if not row.is_done]  # the others were complete before their batch failed
        if not rows:
            return
        for row in rows:
            row.start()
        sequences = [row.sequence for row in rows]
        inputs = self._prompts.collate([sequence.prompt for sequence in sequences])
        with self._handle.using(config=sequences[0].setup) as run:
            generate(
                self._model,
                inputs,
                max(sequence.max_tokens for sequence in sequences),
                pad_token_id=self._prompts.pad_token,
                logits_processor=LogitsProcessorList([RowSampler([row.drawing for row in rows])]),
                stopping_criteria=StoppingCriteriaList([_Step(rows, run, self._handle, self.turns)]),
            )


class _Step(StoppingCriteria):
    """Called by `generate` after every step: gives each row its token, and other batches their turn."""

    def __init__(self, rows: list[RunningSequence], run: UsingBlock, handle: Compression, turns: Turns):
        self._rows, self._run, self._handle, self._turns = rows, run, handle, turns
        self._costs: list[PromptCost] = []
        self._turn_began, self._computed = monotonic(), 0.0

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self._computed += monotonic() - self._turn_began
        if not self._costs:
            self._costs = [
                _cost(self._handle, row.sequence, index, self._run.report) for index, row in enumerate(self._rows)
            ]
        tokens = input_ids[:, -1].tolist()
        rows = zip(self._rows, tokens, self._costs, strict=True)
        done = [row.take(token, cost, self._computed) for row, token, cost in rows]
        if not all(done):
            pass_on(self._turns, self._handle)
        self._turn_began = monotonic()
        return torch.tensor(done, device=input_ids.device)  # [batch]


def pass_on(turns: Turns, handle: Compression) -> None:
    """Let others have their turns at the model."""
    with _kept(handle):
        turns.pass_on()


@contextmanager
def _kept(handle: Compression) -> Iterator[None]:
    """Preserve what a model stores about its batch (Qwen's `rope_deltas`) while other batches have their turns."""
    base = handle.settings.family.base
    own = {name: getattr(base, name) for name in ("rope_deltas",) if hasattr(base, name)}
    yield
    for name, value in own.items():
        setattr(base, name, value)


def _cost(handle: Compression, sequence: Sequence, index: int, report: Report | None) -> PromptCost:
    """The cost of row `index` of a batch; without a report it ran uncompressed."""
    decoder, prompt = handle.settings.decoder, sequence.prompt
    plain = [prompt.length] * decoder.layers
    images = () if report is None else tuple(image for image in report.images if image.sample == index)
    others = prompt.length - sum(image.tokens for image in images)
    seen = [others + sum(image.tokens_per_layer[layer] for image in images) for layer in range(decoder.layers)]
    cached = [others + sum(image.cached_tokens_per_layer[layer] for image in images) for layer in range(decoder.layers)]
    return PromptCost(
        visual_tokens=sum(image.tokens for image in images) if images else prompt.visual_tokens,
        visual_tokens_kept=sum(image.mean_tokens for image in images) if images else prompt.visual_tokens,
        cache_bytes=decoder.kv_bytes(cached),
        cache_bytes_uncompressed=decoder.kv_bytes(plain),
        flops=decoder.flops(seen),
        flops_uncompressed=decoder.flops(plain),
        certificates=tuple(
            None if image.certificate is None else image.certificate.to_dict() for image in whole_videos(images)
        ),
        images=images,
    )


def _told(failure: Failure) -> Exception:
    """What a client is told: why its request is impossible, but nothing about errors of the server."""
    return Refusal(400, "impossible", failure.line) if failure.is_refusal else RuntimeError(failure.line)


def _log_failure(error: Exception, rows: Collection[RunningSequence]) -> None:
    if not is_refusal(error):  # then the server is sound
        log_failure(error, len(rows))


def log_failure(error: Exception, rows: int) -> None:
    """Log what went wrong while so many answers were written, without their text."""
    fields = {"error": type(error).__name__, "where": _where(error), "rows": rows}
    _LOG.error("generation failed", extra={"fields": fields})


def _where(error: BaseException) -> str:
    """Where an error was raised; unlike its text, this cannot quote a prompt."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
