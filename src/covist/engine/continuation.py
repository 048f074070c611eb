"""A continuation: text tokens after a compressed prompt, one at a time or several."""

from __future__ import annotations

from typing import Any

from covist.backends import takes_no_mask
from covist.contract.method import AttentionRule
from covist.engine.attention.interface import backend_of
from covist.engine.attention.mask import StageAttention
from covist.engine.attention.step import StepAttention
from covist.engine.passes import Pass, Stage, handed
from covist.engine.sequence.cache import stage_ranges
from covist.engine.sequence.ledger import Ledger
from covist.errors import CovistError


class Continuation(Pass):
    """Decoding, or a further turn of text: the new tokens join every stage's ledger."""

    _step: StepAttention | None = None  # the attention of a single new token

    def prepare(self, module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        embeddings = arguments["inputs_embeds"]
        positions = self.positions(arguments.get("position_ids"), embeddings.shape[:2], embeddings.device)
        self._positions = positions
        self._module, self._backend = module, backend_of(module)
        rule = self.settings.rule
        explicit = rule is not None and not takes_no_mask(self._backend)
        self._ledgers: dict[int, Ledger] = {}
        assert self.book is not None, "a continuation has a compressed cache"
        for layers, ledger in stage_ranges(self.book.stages, self.settings.decoder.layers):
            held = {self.layers[number].held for number in layers if number in self.layers}
            if held - {ledger.length, 0}:  # layers that share keys hold none
                raise CovistError(
                    "the cache was modified, or a call that filled it was interrupted; continue with a cache that this "
                    "model returned, or start again from the prompt"
                )
        bound = self.seen + embeddings.shape[1] - 1
        for first, ledger in self.book.stages.items():
            reach = max(ledger.reach + embeddings.shape[1], bound)
            self._ledgers[first] = ledger.grown(
                positions, self.padding_mask(arguments), reach, masked=explicit and ledger.reduced
            )
        for first, ledger in self._ledgers.items():
            placed = ledger.placed(positions) if ledger.shifted else None
            self.stages[first] = Stage(self._not_yet, ledger, positions=placed)
        # The text model itself places what enters it, and some place all keys again.
        entering, self.stages[0].positions = self.stages[0].positions, None
        return arguments if entering is None else {**arguments, "position_ids": handed(entering)}

    def begin_layers(self) -> None:
        rule = self.settings.rule
        rule = None if rule is None else rule.while_decoding
        queries = self._positions.shape[1]
        if queries == 1 and not takes_no_mask(self._backend) and not _needs_every_key(rule):
            assert self.book is not None
            stages = stage_ranges(self._ledgers, self.settings.decoder.layers)
            step = self._step = StepAttention(stages, self._positions, rule, self.book.prepared)
            for stage in self.stages.values():
                stage.attend = step.attend
            self.is_plain = all(stage.is_plain for stage in self.stages.values())
            return
        for first, ledger in self._ledgers.items():
            attention = StageAttention(ledger, queries, rule)
            self._ledgers[first], self.stages[first].attend = attention.ledger, attention.attend

    def finish(self, output: Any) -> Any:
        book = self.book
        assert book is not None
        book.stages, book.given = self._ledgers, self.seen + self._positions.shape[1]
        book.rule = self.settings.rule  # dynamic frequencies change it from call to call
        if self._step is not None:
            book.prepared = self._step.prepared
        self._write_down(book, self._module)
        return output

    def _not_yet(self, call: Any) -> Any:
        raise AssertionError("layers begin before they attend")


def _needs_every_key(rule: AttentionRule | None) -> bool:
    """Whether text keys, whose number grows, have a bias, or weights are means over images."""
    if rule is None:
        return False
    return bool(rule.mean_weights) or rule.distance_keys == "all" and rule.distances is not None
