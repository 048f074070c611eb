"""A compressed text model by hand: the plain model's own masks, cut to the rows that are left, with log m added.

Rules, ledgers, stages, caches and hooks of the engine have no part in it. The plain model runs once on the whole prompt
with eager attention and without a cache, and what its text model and every layer got is written down. Then the plain
text model runs on the rows that are left, and every layer gets what was written down for these rows. Only the choices
of the method come from the compressed run: which tokens are left, their features and their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covist.contract.method import AttentionRule, Method


@dataclass
class Chosen:
    """What a method made of the images of a prompt: by depth, one state per image in prompt order."""

    states: dict[int, list[Any]] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def by(cls, method: Method) -> Iterator[Chosen]:
        """Write down what a method chooses in the next prefill of one prompt."""
        chosen = cls()

        def watch(depth_of: Any, original: Any) -> Any:
            def call(*args: Any) -> Any:
                outcome = original(*args)
                chosen.states.setdefault(depth_of(args), []).append(outcome.state)
                return outcome

            return call

        own: Any = method
        own.begin = watch(lambda args: 0, method.begin)
        own.reduce = watch(lambda args: args[1].depth, method.reduce)
        try:
            yield chosen
        finally:
            del own.begin, own.reduce


class Literal:
    """The last hidden states and logits of a plain model whose images were reduced as a method chose."""

    def __init__(self, model: Any, rule: AttentionRule | None, reindex: bool = False):
        """`model` is not compressed; `rule` is the method's bias; `reindex`: the sequence is numbered anew."""
        self.model, self.decoder = model, model.model.language_model
        self.rule, self.reindex = rule, reindex

    @torch.no_grad()
    def logits(self, inputs: dict[str, Tensor], chosen: Chosen) -> Tensor:
        """Of the last token of one prompt without padding [vocabulary]."""
        text, layers = self._record(inputs)
        is_image = inputs["input_ids"][0] == self.model.config.image_token_id
        spans = is_image.nonzero().squeeze(1).chunk(len(chosen.states[0]))
        left = {depth: self._rows(is_image, spans, states) for depth, states in chosen.states.items()}
        embeddings, positions = text["inputs_embeds"][0, left[0]], text["position_ids"][..., left[0]]
        for rows, state in zip(spans, chosen.states[0], strict=True):
            embeddings[torch.isin(left[0], rows[state.indices])] = state.features
        if self.reindex:
            positions = positions[..., :1] + torch.arange(len(left[0]))
        per_token = {
            name: value[:, left[0]]
            for name, value in text.items()
            if isinstance(value, Tensor) and value.shape[:2] == is_image[None].shape
        }
        arguments = {**text, **per_token, "inputs_embeds": embeddings[None], "position_ids": positions}
        arguments |= {"attention_mask": torch.ones(1, len(left[0]), dtype=torch.long)}
        with self._shortened(layers, left, spans, chosen, text["position_ids"]):
            hidden = self.decoder(**arguments).last_hidden_state
        return self.model.lm_head(hidden[0, -1])

    def _record(self, inputs: dict[str, Tensor]) -> tuple[dict[str, Any], list[Any]]:
        """The arguments of the text model, and the mask of every layer, of the plain model on the whole prompt."""
        text: dict[str, Any] = {}
        masks: list[Any] = []
        hooks = [self.decoder.register_forward_pre_hook(lambda _, args, given: text.update(given), with_kwargs=True)]
        for layer in self.decoder.layers:
            hooks.append(
                layer.register_forward_pre_hook(
                    lambda _, args, given: masks.append(given["attention_mask"]), with_kwargs=True
                )
            )
        with _eager(self.model):
            self.model(**inputs, use_cache=False)
        for hook in hooks:
            hook.remove()
        count = inputs["input_ids"].shape[1]
        if text.get("position_ids") is None:
            text["position_ids"] = torch.arange(count)[None]
        return text, masks

    def _rows(self, is_image: Tensor, spans: Any, states: list[Any]) -> Tensor:
        keep = ~is_image
        for rows, state in zip(spans, states, strict=True):
            keep[rows[state.indices]] = True
        return keep.nonzero().squeeze(1)

    @contextmanager
    def _shortened(
        self, masks: list[Any], left: dict[int, Tensor], spans: Any, chosen: Chosen, positions: Tensor
    ) -> Iterator[None]:
        """Layers that get the masks of the rows that are left, and from a later depth on fewer rows."""

        def enter(index: int, args: tuple, given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            depth = max(one for one in left if one <= index)
            rows, states = left[depth], chosen.states[depth]
            hidden = args[0] if args else given["hidden_states"]
            kept = torch.isin(left[0], rows)
            if hidden.shape[1] != len(rows):
                before = left[max(one for one in left if one < depth)]
                hidden = hidden[:, torch.isin(before, rows)]
                for span, state in zip(spans, states, strict=True):
                    hidden[:, torch.isin(rows, span[state.indices])] = state.features
            given = {name: _cut(value, kept) for name, value in given.items()}
            given["attention_mask"] = self._mask(index, masks[index], rows, spans, states, positions)
            given.pop("hidden_states", None)
            return (hidden, *(_cut(value, kept) for value in args[1:])), given

        hooks = [
            layer.register_forward_pre_hook(
                lambda _, args, given, index=index: enter(index, args, given), with_kwargs=True
            )
            for index, layer in enumerate(self.decoder.layers)
        ]
        try:
            with _eager(self.model):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _mask(self, layer: int, mask: Any, rows: Tensor, spans: Any, states: list[Any], positions: Tensor) -> Any:
        if mask is None or mask.ndim == 2:
            return None if mask is None else mask[:, rows]
        mask = mask[:, :, rows][..., rows]
        if self.rule is None or all(len(span) == state.count for span, state in zip(spans, states, strict=True)):
            return mask
        bias = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        at = positions.reshape(-1, positions.shape[-1])[-1, rows].double()
        table = self.rule.distance(layer)
        for span, state in zip(spans, states, strict=True):
            keys = torch.isin(rows, span[state.indices])
            if self.rule.weights:
                bias[:, keys] += state.weights.double().log()
            if table is not None:
                turned = (at[:, None, None] - at[keys][None, :, None]).abs() * table.inverse_frequencies
                bias[:, keys] += torch.log(2 - turned.cos().mean(-1))
        return mask + (self.rule.scale[layer].double()[:, None, None] * bias).to(mask.dtype)


def _cut(value: Any, kept: Tensor) -> Any:
    """What a layer is given for every token of the first stage, for the tokens that are still there."""
    if isinstance(value, tuple):
        return tuple(_cut(one, kept) for one in value)
    per_token = isinstance(value, Tensor) and value.ndim >= 2 and value.shape[1] == len(kept)
    return value[:, kept] if per_token else value


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    config = model.model.language_model.config
    before, config._attn_implementation = config._attn_implementation, "eager"
    try:
        yield
    finally:
        config._attn_implementation = before
