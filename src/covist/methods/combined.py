"""Any selector with CoViST's composition (`+csc`) and attention (`+sca`), to measure what each part contributes.

`divprune+csc` keeps DivPrune's tokens and composes weights and content from the removed ones (Eqs. 6-8) under
CoViST's evidence (Eq. 3). Inside the decoder the evidence is uniform, as in CoViST's own final stage. `+sca` adds the
attention of Eqs. 9 and 10 and keeps the original positions, which Eq. 9 assumes, unless `positions=` says otherwise.
Without `+csc` its weights are one, or those that a merging method recorded.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method
from covist.contract.views import BlockView, DecoderView, ImageContext, PixelView
from covist.errors import CovistError
from covist.formulas.composition import compose
from covist.formulas.coverage import affinity
from covist.formulas.evidence import mix_evidence, mix_heads, visual_evidence
from covist.formulas.ops import mass_norm
from covist.methods.covist import Covist
from covist.methods.inside import DropInside
from covist.reduction import Reduction
from covist.schedule import Schedule
from covist.state import VisualState

COMPOSITION, ATTENTION = "csc", "sca"
PARTS = (COMPOSITION, ATTENTION)


class Combined(Method):
    """A base method with CoViST's composition, attention or both."""

    def __init__(self, base: Method, parts: set[str], config: CovistConfig | None = None, **options: Any):
        super().__init__(**options)
        if isinstance(base, Covist):
            raise CovistError(
                f"{base.name} already has CoViST's composition and attention; +csc and +sca are for other methods"
            )
        if COMPOSITION in parts and base.writes_content:
            raise CovistError(
                f"{base.name} writes the content of its tokens itself; +csc needs a method that only selects"
            )
        self.name = "+".join([base.name, *(part for part in PARTS if part in parts)])
        self._base, self._parts = base, parts
        self._covist = Covist(config)
        self.uses_clip_text = base.uses_clip_text or "evidence" in parts_read(base, parts)
        self.encoder_requests = base.encoder_requests
        self.counts, self.watches_blocks = base.counts, base.watches_blocks
        self.rates_patches = base.rates_patches
        if options.get("positions") is None:
            self.positions = "keep" if ATTENTION in parts else base.positions

    @property
    def needs(self) -> tuple[str, ...]:
        return self._base.needs

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        return self._base.schedule(layers, budget, tokens)

    def observed_layer(self, depth: int) -> int:
        return self._base.observed_layer(depth)

    def is_due(self, count: int, current: int) -> bool:
        return self._base.is_due(count, current)

    def rate_patches(self, pixels: PixelView) -> Tensor:
        return self._base.rate_patches(pixels)

    def see_block(self, memory: Any, block: BlockView) -> None:
        self._base.see_block(memory, block)

    def begin(self, image: ImageContext, count: int) -> Reduction:
        outcome = self._base.begin(image, count)
        if COMPOSITION not in self._parts:
            return outcome
        started = perf_counter()
        state = image.initial_state(affinity(image.signals.keys, image.signals.embeddings))
        if count == state.count:
            return Reduction(state)  # later reductions need the affinities
        composition = compose(state, outcome.state.indices, self._evidence(image), self._covist.config)
        return _composed(outcome, composition, started)

    def memory(self, image: ImageContext) -> object | None:
        return self._base.memory(image)

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        outcome = self._base.reduce(state, view, count)
        if COMPOSITION not in self._parts or not outcome.state.count:  # nothing is left to compose into
            return outcome
        started = perf_counter()
        kept = torch.searchsorted(state.indices, outcome.state.indices)
        uniform = torch.full_like(state.weights, 1 / state.count)
        return _composed(outcome, compose(state, kept, uniform, self._covist.config), started)

    def _evidence(self, image: ImageContext) -> Tensor:
        """e of Eq. 3, [N]."""
        signals, config = image.signals, self._covist.config
        attention = mass_norm(signals.packed(mix_heads(signals.attention)))
        visual = visual_evidence(attention, signals.keys, signals.embeddings, image.grid, config)
        instruction = self._covist.instruction_evidence(image)
        if instruction is None:
            return visual.base
        return mix_evidence(visual.base, instruction.distribution.float(), instruction.max_weight, config)

    def attention_rule(self, decoder: Decoder) -> AttentionRule | None:
        method = self._covist if ATTENTION in self._parts else self._base
        return method.attention_rule(decoder)


def parts_read(base: Method, parts: set[str]) -> tuple[str, ...]:
    """Parts of `CovistConfig` that a combination reads; inside the decoder the evidence is uniform."""
    composition = ("composition",) if isinstance(base, DropInside) else ("composition", "evidence")
    return (composition if COMPOSITION in parts else ()) + (("attention",) if ATTENTION in parts else ())


def _composed(chosen: Reduction, composed: Reduction, started: float) -> Reduction:
    """A composition with what the method that chose the tokens knew."""
    return replace(
        chosen,
        state=composed.state,
        withheld=composed.withheld,
        assignment=composed.assignment,
        seconds={**chosen.seconds, "composition": perf_counter() - started},
    )
