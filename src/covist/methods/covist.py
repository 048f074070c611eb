"""CoViST-Fixed and CoViST-Pro: the paper's method as reductions plus an attention rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.config import CovistConfig
from covist.contract.decoder import Decoder
from covist.contract.method import AttentionRule, Method, MethodInfo
from covist.contract.reading import nearest_frequencies, readable_depth
from covist.contract.views import DecoderView, ImageContext, PerImage
from covist.errors import CovistError
from covist.formulas.adaptive import smallest_selection
from covist.formulas.composition import compose, drop, forget_history
from covist.formulas.concentration import ConcentrationTracker
from covist.formulas.coverage import affinity
from covist.formulas.evidence import first_layer_distribution, instruction_distribution, mix_heads
from covist.formulas.internal import attention_score, internal_score, internal_selection, spatial_subsample, value_score
from covist.formulas.ops import mass_norm
from covist.formulas.positions import resolve_span
from covist.formulas.selection import InstructionEvidence, Selection, WeighedImage, weigh
from covist.methods.registry import register_method
from covist.reduction import Reduction
from covist.schedule import Schedule, fixed_schedule, progressive_cuts, progressive_schedule
from covist.state import VisualState

PUBLISHED = "Every equation and constant of the paper."
OURS = "Choices that the paper leaves open; docs/method.md lists them."
CHECKED = "reference: slow literal versions of the equations, in tests/reference"
NEEDS = ("class-attention", "encoder-features", "embeddings", "clip-text", "question", "decoder-attention")


@dataclass
class Weighing:
    """What CoViST works out about an image before it chooses; the selections of all counts share it."""

    image: WeighedImage
    instruction: InstructionEvidence | None
    selection: Selection | None = None  # of the count that a coverage needs


class Covist(Method):
    """Coverage-guided selection, conserved contributions, state-conditioned attention."""

    uses_clip_text = True
    measures_coverage = True
    options: ClassVar = {
        "config": "all constants at once, a CovistConfig (in Python)",
        "tracker": "the running concentration reference, a ConcentrationTracker (in Python)",
    }
    tracker: ConcentrationTracker

    def __init__(self, config: CovistConfig | None = None, tracker: ConcentrationTracker | None = None, **options: Any):
        super().__init__(**options)
        if config is not None and not isinstance(config, CovistConfig):
            raise CovistError(f"config={type(config).__name__}: pass a CovistConfig")
        self.config = config or CovistConfig()
        self.tracker = tracker or ConcentrationTracker()
        self._weighings: PerImage[Weighing] = PerImage()

    # -- initial stage: CSI, then CSC ----------------------------------------------------------------------------------

    def begin(self, image: ImageContext, count: int) -> Reduction:
        if count == image.grid.size:
            return Reduction(image.initial_state(), coverage=1.0)
        started = perf_counter() - image.seconds
        weighing = self.weigh(image)
        selection = weighing.selection
        if selection is None or len(selection.kept) != count:
            selection = weighing.image.select(count)
        selected = perf_counter()
        state = image.initial_state(weighing.image.affinity, selection.anchors)
        composition = compose(state, selection.kept, selection.evidence, self.config)
        return _completed(composition, selection, started, selected, self._captions(weighing.instruction))

    def count_for(self, image: ImageContext, level: float, least: int, most: int) -> int:
        if least == image.grid.size:
            return least
        weighing = self.weigh(image)
        selection = smallest_selection(weighing.image, level, least, most)
        weighing.selection = selection  # `begin` uses it, unless the first stage keeps another count
        return len(selection.kept)

    def weigh(self, image: ImageContext) -> Weighing:
        """The part that the selections of all counts share, computed once."""
        if image not in self._weighings:
            signals, tracker = image.signals, self.tracker
            counted = tracker in signals.references
            reference = signals.references[tracker] if counted and tracker.frozen is None else tracker.read()
            instruction = self.instruction_evidence(image)
            weighed = weigh(
                mass_norm(signals.packed(mix_heads(signals.attention))),
                signals.keys,
                signals.embeddings,
                image.grid,
                self.config,
                instruction,
                reference,
            )
            if not counted:
                tracker.update(weighed.concentration)
                signals.references[tracker] = reference
            self._weighings[image] = Weighing(weighed, instruction)
        return self._weighings[image]

    def _captions(self, instruction: InstructionEvidence | None) -> dict[str, str]:
        """What bright means in the evidence maps."""
        if instruction is not None and instruction.anchors_allowed:  # only in CLIP's space
            negative = self.config.instruction_sign < 0
            alike, sign = ("unlike", "negative sign, as published") if negative else ("like", "positive sign")
            caption = f"bright: {alike} the question\n({sign})"
        else:
            caption = "bright: attended to by\nthe question in layer 0"
        return {
            "attention": "bright: attended to",
            "distinctiveness": "bright: stands out",
            "instruction": caption,
            "combined": "bright: weighs most",
        }

    def instruction_evidence(self, image: ImageContext) -> InstructionEvidence | None:
        """The instruction distribution, from CLIP's text space if there is one, else from the first decoder layer."""
        device = image.signals.embeddings.device
        if image.text_features is not None and image.patch_text_features is not None:
            distribution = instruction_distribution(image.text_features, image.patch_text_features, self.config)
            return InstructionEvidence(distribution.to(device), True, self.config.instruction_weight)
        decoder, text = image.decoder, image.instruction.embeddings
        if image.text_tower is not None or not len(text) or not decoder.reads(0):
            return None
        queries = decoder.queries(0, decoder.first_input(text))
        keys = decoder.keys(0, decoder.first_input(image.signals.embeddings.to(text)))
        distribution = first_layer_distribution(queries, keys, decoder.scale(0))
        return InstructionEvidence(distribution.to(device), False, self.config.instruction_weight_first_layer)

    # -- stages inside the decoder -------------------------------------------------------------------------------------

    def reduce(self, state: VisualState, view: DecoderView, count: int) -> Reduction:
        started = perf_counter()
        if state.affinity is None:  # earlier stages kept every token and did not need it
            similarity = affinity(view.signals.keys, view.signals.embeddings, self.config.epsilon)
            state = state.replace(affinity=similarity.to(state.indices.device))
        if not self.config.inheritance:
            state = forget_history(state, self.config.epsilon)
        first_cut, _ = progressive_cuts(view.decoder.layers, self.config)
        if view.depth == readable_depth(self, view.decoder, first_cut):
            score, frequencies = self._score(view), nearest_frequencies(view.decoder, view.depth)
            selection = internal_selection(state, score, count, frequencies, self.config)
        else:
            selection = spatial_subsample(state, count, self.config)
        selected = perf_counter()
        if self.config.inheritance:
            composition = compose(state, selection.kept, selection.evidence, self.config)
        else:
            composition = drop(state, selection.kept)
        captions = {"combined": "bright: relevant to the question"}
        return _completed(composition, selection, started, selected, captions)

    def _score(self, view: DecoderView) -> Tensor:
        """Relevance of the representatives to the instruction at the current depth [K]."""
        last = torch.tensor([view.last_instruction_row], device=view.visual.device)
        decoder = view.decoder
        table = decoder.distances[view.depth] if self.config.distance else None
        factor = torch.zeros(len(view.visual), dtype=torch.float32, device=view.visual.device)
        if table is not None:
            factor = table.log_factor(view.positions[last], view.positions[view.visual])[0]
        gains = self._head_gains(decoder)[view.depth].to(factor.device)
        attention = attention_score(
            view.queries(last)[:, 0], view.keys(view.visual), factor, gains, decoder.scale(view.observed_layer)
        )
        texts = view.instruction_rows if len(view.instruction_rows) else last
        return internal_score(attention, value_score(view.values(texts), view.values(view.visual)), self.config.epsilon)

    # -- attention and positions ---------------------------------------------------------------------------------------

    def attention_rule(self, decoder: Decoder) -> AttentionRule | None:
        if not self.config.attention:
            return None
        return AttentionRule(
            scale=self._head_gains(decoder) * self._strategy_gain(decoder),
            distances=decoder.distances if self.config.distance else None,
        )

    def _head_gains(self, decoder: Decoder) -> Tensor:
        """g [layers, heads]."""
        if not self.config.head_gains:
            return torch.ones(decoder.layers, decoder.heads, dtype=torch.float32)
        return decoder.head_gains(self.config.gain_range)

    def _strategy_gain(self, decoder: Decoder) -> Tensor:
        """u_l [layers, 1]."""
        return torch.ones(decoder.layers, 1, dtype=torch.float32)

    def position_span(self, length: int, budget: int) -> int:
        return resolve_span(self.config, length, budget)


@register_method
class CovistFixed(Covist):
    name = "covist-fixed"
    reads_constants = ("evidence", "selection", "composition", "attention", "positions")
    info = MethodInfo(
        paper="CoViST: Visual Token Compression via Composable States",
        acts="before the decoder",
        signals="class attention, encoder keys, embeddings, CLIP text or first decoder layer",
        budget="exactly K in every layer",
        criterion="coverage",
        needs=NEEDS,
        published=PUBLISHED,
        ours=OURS,
        checked=CHECKED,
    )

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        return fixed_schedule(layers, budget, tokens)


@register_method
class CovistPro(Covist):
    name = "covist-pro"
    reads_constants = (*CovistFixed.reads_constants, "progressive execution")
    info = MethodInfo(
        paper="CoViST: Visual Token Compression via Composable States",
        acts="before the decoder and before layers 14/32 and 24/32",
        signals="those of covist-fixed, and queries, keys and values of the decoder",
        budget="layer average K: 1.5 K, then less, then K/4",
        criterion="coverage",
        needs=(*NEEDS, "decoder-keys"),
        published=PUBLISHED,
        ours=OURS,
        checked=CHECKED,
    )

    def schedule(self, layers: int, budget: int, tokens: int) -> Schedule:
        return progressive_schedule(layers, budget, tokens, self.config)

    def _strategy_gain(self, decoder: Decoder) -> Tensor:
        gain = torch.ones(decoder.layers, 1, dtype=torch.float32)
        first_cut, _ = progressive_cuts(decoder.layers, self.config)
        gain[: readable_depth(self, decoder, first_cut)] = self.config.first_stage_gain
        return gain


def _completed(
    composed: Reduction, selection: Selection, started: float, selected: float, captions: dict[str, str]
) -> Reduction:
    """A composition with what its selection knew."""
    return replace(
        composed,
        coverage=selection.coverage,
        covered=selection.covered,
        maps=selection.maps,
        captions=captions,
        seconds={"selection": selected - started, "composition": perf_counter() - selected},
    )
