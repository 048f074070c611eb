"""The settings in `"covist": {...}` of vLLM's --hf-overrides, and checks for what vLLM cannot do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from covist.api.setup import DEFAULT_METHOD, VERSION, VERSION_KEY, Setup
from covist.budget import Budget, Plain, refusal
from covist.contract.method import AttentionRule, Method
from covist.errors import CovistError
from covist.methods.combined import Combined
from covist.methods.create import create_method

UNCOMPRESSED = "100%"
"""The budget that keeps every token of an image."""
BUDGET = "covist_budget"
"""The key in a request's `mm_processor_kwargs` for its own budget."""
REQUESTS = "covist_requests"
"""The key among the options of a processor for the requests of all items."""
ITEM = "covist_item"
"""The field of a processed image or video for what the model must know of it."""
MODALITIES = ("image", "video", "vision_chunk")
"""What is compressed; audio is not."""
PREFIX = "Covist"
"""Before the name of vLLM's model class: "architectures" in --hf-overrides."""
BY_EMBEDDINGS = "covist-max:features=embeddings"
"""The method for models of whose vision tower nothing is read."""
WITHOUT_WEIGHTS = "covist-max:features=embeddings,weights=off"
"""The method for engines that cannot add a bias to attention."""
COST = "which cost 5 to 8 points on our scenes (`covist eval` measures yours)"
AXES = "covist_axes"
"""The attribute of a configuration for `Serving.axes`, which the plugin sets."""
ANY_DECODER: Any = SimpleNamespace(
    layers=1,
    heads=1,
    distances=(None,),
    head_gains=lambda gain_range: torch.ones(1, 1),
)
"""An example decoder for which a method's attention rule shows which keys and steps it biases."""


@dataclass(frozen=True)
class Serving:
    """How an engine compresses images.

    budget: of requests that give none
    instruction: whether the selection uses the question; an image is then encoded again for every question
    clip: the CLIP checkpoint whose text space compares question and image
    columns: extra dimensions per head, which carry the bias; None takes the fewest that the attention backend supports
    axes: of the model's rotary positions
    """

    method: Method
    budget: Budget
    instruction: bool = False
    clip: str | None = None
    columns: int | None = None
    axes: int = 1

    @classmethod
    def of(cls, config: Any) -> Serving:
        """The settings in a model's configuration, which the plugin has checked."""
        return replace(cls.read(getattr(config, "covist", None)), axes=getattr(config, AXES, 1))

    @classmethod
    def read(cls, values: Any) -> Serving:
        """Read the settings in a model's configuration; anything wrong raises a `CovistError` of one line."""
        if not isinstance(values, Mapping):
            raise CovistError(
                'vLLM: --hf-overrides needs "covist" with the settings, as in {"budget": 64}; see `covist vllm-args`'
            )
        own = {name: values[name] for name in ("instruction", "clip", "columns") if name in values}
        setup = Setup.from_dict({VERSION_KEY: VERSION} | {name: values[name] for name in values if name not in own})
        if setup.budget is None:
            raise CovistError('vLLM: "covist" has no budget; give the visual tokens per image, such as "budget": 64')
        for unknown in ("min_coverage", "max_visual_tokens"):
            if getattr(setup, unknown) is not None:
                raise CovistError(
                    f"vLLM: {unknown} is not possible: the prompt's length is fixed before the image is seen"
                )
        check_served_budget(setup.budget)
        name = setup.method or DEFAULT_METHOD
        method = create_method(name, **setup.options_for(name))
        _require_before_the_decoder(method)
        require_served_rule(method, method.attention_rule(ANY_DECODER))
        _fix_concentration(method, setup.concentration)
        return cls(method, setup.budget, **_checked(own))

    @property
    def reads_embeddings(self) -> bool:
        """Whether the method reads nothing of an image but its embeddings, which every model has."""
        plain = not isinstance(self.method, Combined) and not self.method.encoder_requests
        reads_layout = self.method.name == "uniform" or self.method.info.made_for == "video"
        return plain and not reads_layout and {*self.method.needs} <= {"embeddings"}

    @property
    def biases(self) -> bool:
        return self.method.attention_rule(ANY_DECODER) is not None


def check_served_budget(budget: Budget) -> None:
    """Refuse a budget whose count depends on the image."""
    if isinstance(budget, Plain):
        raise CovistError(refusal(str(budget)))
    if not budget.says_count:
        raise CovistError(
            f"budget={str(budget)!r}: vLLM fixes the prompt's length before the image is seen; give a count or a share"
        )


def read_budget(options: Mapping[str, Any]) -> tuple[Budget | None, dict[str, Any]]:
    """The budget in a request's `mm_processor_kwargs` (None means the engine's), and the other options."""
    unknown = [name for name in options if name.startswith("covist_") and name not in (BUDGET, REQUESTS)]
    if unknown:
        raise CovistError(f"mm_processor_kwargs: unknown option {', '.join(unknown)}; covist has only {BUDGET}")
    if options.get("use_audio_in_video"):
        raise CovistError("use_audio_in_video: the places of sound and video overlap; videos are compressed without it")
    budget = None if options.get(BUDGET) is None else Budget.parse(options[BUDGET])
    if budget is not None:
        check_served_budget(budget)
    return budget, {name: value for name, value in options.items() if name != BUDGET}


def require_served_rule(method: Method, rule: AttentionRule | None) -> None:
    """Refuse a rule in which the bias of a key is not the same for every query that reads it from the cache."""
    if rule is None:
        return
    if len(rule.tables) > 1:
        raise CovistError(
            f"{method.name} needs a distance factor that differs between layers, which one set of columns cannot "
            "carry in vLLM; use covist-max"
        )
    if rule.distance_keys != "visual" or rule.decoding is not None or rule.mean_weights:
        raise CovistError(
            f"{method.name} biases prefill and decoding differently, but in vLLM both use the same cached keys; "
            "use covist-fixed or covist-max"
        )


def require_readable(serving: Serving, model: str, tower_is_read: bool) -> None:
    """Refuse a method that reads more of an image than vLLM shows of this model."""
    if serving.instruction and not tower_is_read:
        raise CovistError(f"vLLM: in {model} the question cannot take part in the selection; omit the instruction")
    if not (tower_is_read or serving.reads_embeddings):
        raise CovistError(
            f"vLLM: {serving.method.name} reads the vision tower, possible in LLaVA-1.5, LLaVA-NeXT, Qwen2-VL, "
            f"Qwen2.5-VL and Qwen3-VL, not in {model}; use {BY_EMBEDDINGS}, divprune or tome"
        )


def _require_before_the_decoder(method: Method) -> None:
    if method.rates_patches:
        raise CovistError(
            f"{method.name} leaves patches out before the vision tower, which vLLM runs on whole images; use it with "
            "transformers, or another method here"
        )
    schedule = method.schedule(layers=32, budget=64, tokens=576)  # of an example: where a method acts shows in any
    if len(schedule.stages) > 1 or schedule.cache_cut_from is not None:
        raise CovistError(
            f"{method.name} removes tokens inside the decoder, but vLLM has one block table for all layers; use "
            "covist-fixed, covist-max or another method that acts before the decoder (`covist methods --acts before`)"
        )


def _fix_concentration(method: Method, reference: float | None) -> None:
    """Fix the reference: with a running one, an image's tokens would depend on what the worker saw before."""
    if method.tracker is None:
        return
    if reference is None:
        method.tracker.warm_up = sys.maxsize  # every image counts as average
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
        raise CovistError('vLLM: clip needs the instruction; add "instruction": true (--instruction) or omit clip')
    return own
