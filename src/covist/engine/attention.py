"""How the layers of a stage attend: the form of Eq. 9's bias for the model's attention backend."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from covist.contract.method import AttentionRule
from covist.engine.decoder import FrozenDecoder
from covist.engine.interface import AttentionSwitch, takes_no_mask
from covist.engine.ledger import Ledger
from covist.engine.mask import ChunkedMask, StageMask, is_plainly_causal, queries_at_once
from covist.engine.step import StepMask
from covist.engine.wide_attention import WideBias, WideStage, codec_of
from covist.formulas.attention import DistanceTable
from covist.formulas.wide_heads import WideHeads


class StageAttention(Protocol):
    """The attention of one stage for the queries of the current call."""

    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments of a layer whose hidden states are `like`."""


class BiasedAttention:
    """Eq. 9 in a decoder. Explicit masks are exact; kernels without masks get wide heads (see docs/method.md)."""

    def __init__(self, decoder: FrozenDecoder, rule: AttentionRule | None):
        decoder.check_backend()
        self._decoder, self.rule = decoder, rule
        self._switch = AttentionSwitch(decoder.module)

    def follow(self, rule: AttentionRule | None) -> None:
        """Continue with another rule, for example after the weights have changed."""
        self.rule = rule
        vars(self).pop("_codecs", None)

    def remove(self) -> None:
        """Restore the decoder's own attention."""
        self._switch.remove()

    def of_stage(self, ledger: Ledger, queries: int, prefill: bool) -> StageAttention:
        """Attention for the last `queries` keys of a ledger."""
        backend, heads = self._decoder.check_backend(), self._decoder.heads
        rule = self.rule if ledger.reduced else None
        if takes_no_mask(backend):
            self._switch.turn_on()
            return WideStage(ledger, None if rule is None else WideBias(ledger, queries, rule, self._codecs, prefill))
        chunk = queries_at_once(ledger, heads if rule is not None else 1)
        if backend == "sdpa" and chunk < queries and not (rule is None and is_plainly_causal(ledger, queries)):
            self._switch.turn_on()
            return ChunkedMask(ledger, queries, rule, heads, prefill, chunk)
        return StageMask(ledger, queries, rule, backend, heads, prefill)

    def is_masked(self, ledger: Ledger) -> bool:
        """Whether the attention over a ledger's keys always gets an explicit mask."""
        return self.rule is not None and ledger.reduced and not takes_no_mask(self._decoder.check_backend())

    def of_step(self, ledger: Ledger, query: Tensor, layers: range, dtype: torch.dtype) -> StageAttention | None:
        """Attention of some layers for one new token per sample, at the positions `query` [batch, 1(, axes)].

        None if a step must be treated like any short prompt: for kernels without masks, and for rules whose distance
        factor applies to text keys too (their number grows) or not in every layer.
        """
        rule = self.rule
        uneven = (
            rule is not None
            and rule.distance_in_decoding
            and any(rule.tables)
            and (rule.distance_keys != "visual" or len(rule.tables) > 1)
        )
        if uneven or takes_no_mask(self._decoder.check_backend()):
            return None
        return StepMask(ledger, query, rule, layers, self._decoder, dtype)

    @cached_property
    def _codecs(self) -> dict[DistanceTable | None, WideHeads]:
        assert self.rule is not None
        return {table: codec_of(table) for table in self.rule.tables}
