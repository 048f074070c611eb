"""A worker: a model that is loaded once and answers rows, in this process or in a process of Ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

from covist.api.origin import refuse_measurements
from covist.batch.answers import RowAnswer
from covist.batch.asking import conversation_of
from covist.batch.grouping import Limit, ReadyRow, first_batch
from covist.batch.rows import Row
from covist.batch.spec import Facts, WorkerSpec
from covist.engine.capture import execution_device
from covist.engine.decoder import FrozenDecoder
from covist.errors import CovistError
from covist.eval.subject import bundled_concentration
from covist.families.registry import family_for
from covist.faults import is_out_of_memory
from covist.request.answer import compressed
from covist.request.halving import in_halves, one_line
from covist.request.identity import identity
from covist.request.loading import LoadedModel, load_model
from covist.request.together import Together

WINDOW_ROWS, WINDOW_BYTES = 64, 2**27
"""Prepared together, so that rows of similar length can share batches: up to so many rows or bytes of pixels."""


def load(spec: WorkerSpec) -> LoadedModel:
    """The model of a spec."""
    from transformers.utils import logging

    for plugin in spec.plugins:
        plugin.load()
    logging.disable_progress_bar()
    return load_model(spec.model, spec.clip, spec.loading)


def facts_about(spec: WorkerSpec, loaded: LoadedModel) -> Facts:
    """The facts that workers must agree on.

    A concentration reference that the setup leaves open is measured on the bundled scenes, as in `covist serve`.
    """
    reference = spec.setup.resolved(lambda: bundled_concentration(loaded)).concentration
    known = replace(spec.setup, concentration=reference)
    refuse_measurements(known, loaded.model.config)  # before the job has a directory
    family = family_for(loaded.model)
    decoder = FrozenDecoder(family.decoder)
    return Facts(identity(loaded), reference, decoder.kv_bytes([1] * decoder.layers), family.default_budget.written)


class Worker:
    """Answers rows. The constructor loads the model; a call keeps no state of its rows.

    loaded: the model, if it is loaded already
    """

    def __init__(self, spec: WorkerSpec, loaded: LoadedModel | None = None):
        self._spec = spec
        self._loaded = loaded or load(spec)
        _require_same(spec.identity, identity(self._loaded))
        self._compression = compressed(self._loaded, spec.setup)
        self._together = Together(self._loaded, self._compression.__enter__())
        self._limit = Limit.of(spec.batch_size, execution_device(self._loaded.model).type)
        self._longest = getattr(self._loaded.model.config.get_text_config(), "max_position_embeddings", None)

    def __call__(self, rows: Sequence[Row]) -> list[RowAnswer]:
        """An answer to every row, in the order of the rows."""
        answers = {answer.id: answer for found in self.stream(rows) for answer in found}
        return [answers[row.id] for row in rows]

    def stream(self, rows: Sequence[Row]) -> Iterator[list[RowAnswer]]:
        """The answers batch by batch; images are prepared while the model works."""
        windows = self._windows(rows)
        with ThreadPoolExecutor(1, "covist-prepare") as preparing:
            upcoming = preparing.submit(next, windows, None)
            while (window := upcoming.result()) is not None:
                upcoming = preparing.submit(next, windows, None)
                prepared, failed = window
                if failed:
                    yield failed
                waiting = sorted(prepared, key=lambda one: one.length)
                while waiting:  # the limit may have fallen since the last batch
                    count = first_batch(waiting, self._limit)
                    yield from self._answered(waiting[:count])
                    waiting = waiting[count:]

    def close(self) -> None:
        """Restore the uncompressed model."""
        self._compression.__exit__(None, None, None)

    def _windows(self, rows: Sequence[Row]) -> Iterator[tuple[list[ReadyRow], list[RowAnswer]]]:
        """Rows that are ready for the model, and errors for those that cannot be prepared."""
        prepared: list[ReadyRow] = []
        failed: list[RowAnswer] = []
        for row in rows:
            try:
                prepared.append(self._prepare(row))
            except Exception as error:  # a bad row must not stop the others
                failed.append(RowAnswer(row.id, error=one_line(error)))
            size = sum(one.posed.request.nbytes for one in prepared)
            if len(prepared) >= WINDOW_ROWS or size >= WINDOW_BYTES:
                yield prepared, failed
                prepared, failed = [], []
        if prepared or failed:
            yield prepared, failed

    def _prepare(self, row: Row) -> ReadyRow:
        if row.error is not None:
            raise CovistError(row.error)
        asked = conversation_of(row, self._spec.prompt, self._loaded.processor)
        posed = asked.pose(self._loaded)
        if self._longest is not None and posed.request.length + self._spec.max_new_tokens > self._longest:
            raise CovistError(f"prompt and answer need more than the {self._longest:,} positions of the model")
        return ReadyRow(row.id, posed)

    def _answered(self, batch: list[ReadyRow]) -> Iterator[list[RowAnswer]]:
        """Answer a batch; one that fails is halved and tried again, until only rows that cannot be answered fail."""
        for outcome in in_halves(batch, self._ask, self._learn):
            yield outcome.result or [RowAnswer(one.id, error=outcome.error) for one in outcome.items]

    def _ask(self, batch: Sequence[ReadyRow]) -> list[RowAnswer]:
        started = perf_counter()
        said = self._together.answer([one.posed for one in batch], max_new_tokens=self._spec.max_new_tokens)
        seconds = (perf_counter() - started) / len(batch)
        return [
            RowAnswer(
                id=one.id,
                answer=answer.text.strip(),
                finish_reason="stop" if answer.is_complete else "length",
                tokens_before=int(answer.shown.tokens),
                tokens_after=round(answer.shown.kept, 3),
                capped=answer.shown.capped > 0,
                seconds=round(seconds, 6),
            )
            for one, answer in zip(batch, said, strict=True)
        ]

    def _learn(self, error: Exception, batch: Sequence[ReadyRow]) -> None:
        """Make later batches smaller than one that memory did not hold."""
        if len(batch) > 1 and is_out_of_memory(error):
            self._limit = self._limit.below(batch)


def _require_same(wanted: dict[str, str] | None, found: dict[str, str]) -> None:
    for name, value in (wanted or found).items():
        if found[name] != value:
            raise CovistError(
                f"this job began with another model ({name}: {value} then, {found[name]} now); "
                "give the same one, or choose another directory"
            )
