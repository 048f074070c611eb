"""What `"covist": {...}` in vLLM's --hf-overrides may say, and what of it vLLM cannot do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from covist.api.setup import VERSION, VERSION_KEY, Setup
from covist.contract.method import AttentionRule, Method
from covist.errors import CovistError
from covist.methods.create import create_method
from covist.schedule import CoverageBudget, check_budget, resolve_budget

DEFAULT_METHOD = "covist-fixed"
UNCOMPRESSED = "100%"
"""The budget that keeps every token of an image."""
BUDGET = "covist_budget"
"""The key of a request's `mm_processor_kwargs` for a budget of its own."""
REQUEST = "covist_request"
"""The field of a processed image that holds what its request says."""
PLACE = "covist_place"
"""The field that holds how many rows remain of it, and how many positions they take."""
ARCHITECTURES = {
    "CovistLlavaForConditionalGeneration": "covist.vllm.llava:CovistLlava",
    "CovistLlavaNextForConditionalGeneration": "covist.vllm.llava_next:CovistLlavaNext",
    "CovistQwen2_5_VLForConditionalGeneration": "covist.vllm.qwen2_5_vl:CovistQwen25VL",
    "CovistQwen3VLForConditionalGeneration": "covist.vllm.qwen3_vl:CovistQwen3VL",
}
"""What to give as "architectures" in --hf-overrides, and the model classes that they stand for."""
SHAPE = {"layers": 32, "budget": 64, "tokens": 576}
"""Of a model and an image that a schedule is asked for, to see where a method acts."""
ANY_DECODER: Any = SimpleNamespace(
    layers=1,
    heads=1,
    distance_table=None,
    layers_without_positions=frozenset(),
    head_gains=lambda gain_range: torch.ones(1, 1),
)
"""What a method's attention rule is asked for, to see which keys and steps it biases."""


@dataclass(frozen=True)
class Serving:
    """How an engine compresses images.

    budget: of a request that says nothing else. instruction: whether the question takes part in the selection, so that
    an image is encoded anew for every question. clip: the CLIP checkpoint whose text space the question is compared in.
    columns: further dimensions of every head, which carry the bias; None takes as few as the attention backend can.
    """

    method: Method
    budget: int | float | str
    instruction: bool = False
    clip: str | None = None
    columns: int | None = None

    @classmethod
    def read(cls, values: Any) -> Serving:
        """From the settings in a model's configuration; whatever is wrong with them is one line."""
        if not isinstance(values, Mapping):
            raise CovistError(
                'vLLM: --hf-overrides needs "covist" with the settings, as in {"budget": 64}; see `covist vllm-args`'
            )
        own = {name: values[name] for name in ("instruction", "clip", "columns") if name in values}
        setup = Setup.from_dict({VERSION_KEY: VERSION} | {name: values[name] for name in values if name not in own})
        if setup.budget is None:
            raise CovistError('vLLM: "covist" has no budget; give the visual tokens per image, such as "budget": 64')
        if setup.min_coverage is not None:
            raise CovistError(
                "vLLM: min_coverage is not possible: the prompt's length is fixed before the image is seen"
            )
        check_served_budget(setup.budget)
        name = setup.method or DEFAULT_METHOD
        method = create_method(name, **setup.options_for(name))
        _require_before_the_decoder(method)
        require_served_rule(method, method.attention_rule(ANY_DECODER))
        _fix_concentration(method, setup.concentration)
        return cls(method, setup.budget, **_checked(own))

    def count(self, budget: int | float | str | None, tokens: int) -> int:
        """Tokens that remain of an image's `tokens`, for the budget of a request; None means the engine's."""
        return resolve_budget(self.budget if budget is None else budget, tokens)


def check_served_budget(budget: int | float | str) -> None:
    """A budget must give its count without looking at the image."""
    check_budget(budget)
    if CoverageBudget.read(budget) is not None:
        raise CovistError(
            f"budget={budget!r}: vLLM fixes the prompt's length before the image is seen; give a count or a share"
        )


def read_budget(options: Mapping[str, Any]) -> tuple[int | float | str | None, dict[str, Any]]:
    """The budget that a request's `mm_processor_kwargs` ask for, None for the engine's, and the other options."""
    unknown = [name for name in options if name.startswith("covist_") and name not in (BUDGET, REQUEST)]
    if unknown:
        raise CovistError(
            f"mm_processor_kwargs: unknown option {', '.join(unknown)}; {BUDGET} is the only one of covist's"
        )
    budget = options.get(BUDGET)
    if budget is not None:
        check_served_budget(budget)
    return budget, {name: value for name, value in options.items() if name != BUDGET}


def require_served_rule(method: Method, rule: AttentionRule | None) -> None:
    """The bias of a key must be the same for every query that ever reads it from the cache."""
    if rule is None:
        return
    if rule.distance_keys != "visual" or not rule.distance_in_decoding or rule.uniform_first_layer:
        raise CovistError(
            f"{method.name} biases prefill and decoding differently, and vLLM's cached keys serve both; "
            "use covist-fixed or covist-max"
        )


def _require_before_the_decoder(method: Method) -> None:
    schedule = method.schedule(**SHAPE)
    if len(schedule.stages) > 1 or schedule.cache_cut_from is not None:
        raise CovistError(
            f"{method.name} removes tokens inside the decoder, and vLLM has one block table for all layers; use "
            "covist-fixed, covist-max or another method that acts before the decoder (`covist methods --acts before`)"
        )


def _fix_concentration(method: Method, reference: float | None) -> None:
    """A running reference would make an image's tokens depend on what a worker saw before it."""
    if method.tracker is None:
        return
    if reference is None:
        method.tracker.warm_up = sys.maxsize  # every image counts as one of average concentration
    else:
        method.tracker.freeze(reference)


def _checked(own: dict[str, Any]) -> dict[str, Any]:
    kinds = {"instruction": (bool, "true or false"), "clip": (str, "a CLIP checkpoint"), "columns": (int, "a number")}
    for name, value in own.items():
        kind, wanted = kinds[name]
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise CovistError(f"vLLM: {name}={value!r}: give {wanted}")
    if own.get("columns") is not None and (own["columns"] <= 0 or own["columns"] % 8):
        raise CovistError(f"vLLM: columns={own['columns']!r}: give a multiple of 8")
    if own.get("clip") and not own.get("instruction"):
        raise CovistError('vLLM: clip belongs to the instruction; add "instruction": true, or leave clip out')
    return own
