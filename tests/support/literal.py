"""A compressed text model by hand: the plain model's own masks, cut to the rows that are left, with log m added.

Rules, ledgers, stages, caches and hooks of the engine have no part in it. The plain model runs once on the whole prompt
with eager attention and without a cache, and what its text model and every layer got is written down. Then the plain
text model runs on the rows that are left, and every layer gets what was written down for these rows. Only the choices
of the method come from the compressed run: which tokens are left, their features and their weights.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from covist.contract.method import AttentionRule, Method
from covist.contract.signals import ImageSignals
from support.counting import counting

EAGER = "eager_attention_forward"


@dataclass
class Chosen:
    """What a method made of the images of a prompt: by depth, one state per image in prompt order."""

    states: dict[int, list[Any]] = field(default_factory=dict)
    signals: list[ImageSignals] = field(default_factory=list)

    @classmethod
    @contextmanager
    def by(cls, method: Method) -> Iterator[Chosen]:
        """Write down what a method chooses in the next prefill of one prompt."""
        chosen = cls()

        def begin(image: Any, count: int) -> Any:
            chosen.signals.append(image.signals)
            return chosen._note(0, original_begin(image, count))

        def reduce(state: Any, view: Any, count: int) -> Any:
            return chosen._note(view.depth, original_reduce(state, view, count))

        own: Any = method
        original_begin, original_reduce = method.begin, method.reduce
        own.begin, own.reduce = begin, reduce
        try:
            yield chosen
        finally:
            del own.begin, own.reduce

    def _note(self, depth: int, reduction: Any) -> Any:
        self.states.setdefault(depth, []).append(reduction.state)
        return reduction


@dataclass
class _Left:
    """The rows of a prompt that are left at one depth, and those of each image among them."""

    rows: Tensor
    images: list[tuple[Tensor, Any]]  # (rows, state) of each

    def is_whole(self, content: Sequence[Tensor]) -> bool:
        return all(len(rows) == len(every) for (rows, _), every in zip(self.images, content, strict=True))


class Literal:
    """The logits of a plain model whose images were reduced as a method chose."""

    def __init__(
        self,
        model: Any,
        decoder: Any,
        rule: AttentionRule | None,
        reindex: bool = False,
        by_visual_token: Sequence[str] = (),
    ):
        """`model` is not compressed; `rule` is the method's bias; `reindex`: the sequence is numbered anew.

        `by_visual_token`: arguments of the text model with features for later layers. They are left out, and what the
        method made of them is added by hand.
        """
        self.model, self.decoder = model, decoder
        self.rule, self.reindex, self.by_visual_token = rule, reindex, by_visual_token

    @torch.no_grad()
    def logits(self, inputs: dict[str, Tensor], is_image: Tensor, chosen: Chosen) -> Tensor:
        """Of the last token of one prompt without padding [vocabulary]; `is_image` [n] are its visual tokens."""
        text, layers = self._record(inputs)
        spans = is_image.nonzero().squeeze(1).split([len(signals.span) for signals in chosen.signals])
        content = [span[signals.content_rows] for span, signals in zip(spans, chosen.signals, strict=True)]
        left = {depth: _left(len(is_image), content, states) for depth, states in chosen.states.items()}
        with self._shortened(layers, left, content, text["position_ids"]):
            hidden = self.decoder(**self._entering(text, left[0], len(is_image))).last_hidden_state
        return self._head(inputs, hidden)

    def _record(self, inputs: dict[str, Tensor]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The arguments of the text model and of every layer, of the plain model on the whole prompt."""
        text: dict[str, Any] = {}
        layers: list[dict[str, Any]] = []
        with ExitStack() as hooks, _eager(self.decoder):
            hooks.enter_context(_before(self.decoder, text.update))
            for layer in self.decoder.layers:
                hooks.enter_context(_before(layer, layers.append))
            self.model(**inputs, use_cache=False)
        if text.get("position_ids") is None:
            text["position_ids"] = torch.arange(inputs["input_ids"].shape[1])[None]
        return text, layers

    def _entering(self, text: dict[str, Any], left: _Left, length: int) -> dict[str, Any]:
        """The arguments of the text model for the rows that are left."""
        embeddings, positions = text["inputs_embeds"][:, left.rows], text["position_ids"][..., left.rows]
        for rows, state in left.images:
            embeddings[:, torch.isin(left.rows, rows)] = state.features
        if self.reindex:
            positions = positions[..., :1] + torch.arange(len(left.rows))
        given = {name: _along(value, left.rows, length) for name, value in text.items()}
        given |= {"inputs_embeds": embeddings, "position_ids": positions}
        given |= dict.fromkeys(self.by_visual_token)
        return {**given, "attention_mask": torch.ones(1, len(left.rows), dtype=torch.long)}

    @contextmanager
    def _shortened(
        self, layers: list[dict[str, Any]], left: dict[int, _Left], content: Sequence[Tensor], positions: Tensor
    ) -> Iterator[None]:
        """Layers that get the masks of the rows that are left, and from a later depth on fewer rows."""

        def at(index: int) -> int:
            return max(depth for depth in left if depth <= index)

        def enter(index: int, layer: Any, args: tuple, given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            now = left[at(index)]
            given = _named(layer, args, given)
            hidden = given["hidden_states"]
            before = left[max((depth for depth in left if depth < index), default=0)]
            for rows, state in before.images:
                if index in state.companions:
                    hidden[:, torch.isin(before.rows, rows)] += state.companions[index]
            if index in left and index:
                hidden = hidden[:, torch.isin(before.rows, now.rows)]
                for rows, state in now.images:
                    hidden[:, torch.isin(now.rows, rows)] = state.features
            kept = torch.isin(left[0].rows, now.rows).nonzero().squeeze(1)
            given = {name: _along(value, kept, len(left[0].rows)) for name, value in given.items()}
            masks = {name: _masked(value, now.rows) for name, value in layers[index].items() if name.endswith("mask")}
            return (), {**given, **masks, "hidden_states": hidden}

        def bias(layer: int) -> Tensor | None:
            now = left[at(layer)]
            return None if self.rule is None or now.is_whole(content) else self._bias(layer, now, positions)

        with ExitStack() as stack:
            for index, layer in enumerate(self.decoder.layers):
                hook = layer.register_forward_pre_hook(partial(enter, index), with_kwargs=True)
                stack.callback(hook.remove)
            stack.enter_context(_eager(self.decoder))
            stack.enter_context(_biased(self.decoder, bias))
            stack.enter_context(counting(self.decoder, [one.rows for one in left.values()]))
            yield

    def _bias(self, layer: int, left: _Left, positions: Tensor) -> Tensor:
        """scale * (log m + log(2 - D)) of visual keys [1, heads, left, left]."""
        assert self.rule is not None
        bias = torch.zeros(len(left.rows), len(left.rows), dtype=torch.float64)
        table = self.rule.distance(layer)
        at = positions.reshape(-1, positions.shape[-1])[:, left.rows].double()  # [axes, left]
        for rows, state in left.images:
            keys = torch.isin(left.rows, rows)
            if self.rule.weights:
                bias[:, keys] += state.weights.double().log()
            if table is not None:
                apart = (at[:, :, None] - at[:, None, keys]).abs()  # [axes, left, keys]
                if table.multidimensional and len(at) > 1:  # a first axis of text may stand before the others
                    apart = apart[-1 - int(table.axes.max()) :][table.axes]
                else:
                    apart = apart[-1:]
                turned = apart.movedim(0, -1) * table.inverse_frequencies
                bias[:, keys] += torch.log(2 - turned.cos().mean(-1))
        return (self.rule.scale[layer].double()[:, None, None] * bias)[None].float()

    def _head(self, inputs: dict[str, Tensor], hidden: Tensor) -> Tensor:
        """What the model makes of the last hidden state."""

        def exchange(module: Any, args: tuple, output: Any) -> Any:
            output.last_hidden_state = torch.zeros_like(output.last_hidden_state)
            output.last_hidden_state[:, -1] = hidden[:, -1]
            return output

        hook = self.decoder.register_forward_hook(exchange)
        try:
            return self.model(**inputs, use_cache=False).logits[0, -1]
        finally:
            hook.remove()


def _left(length: int, content: Sequence[Tensor], states: Sequence[Any]) -> _Left:
    keep = torch.ones(length, dtype=torch.bool)
    keep[torch.cat(list(content))] = False
    images = [(rows[state.indices], state) for rows, state in zip(content, states, strict=True)]
    for rows, _ in images:
        keep[rows] = True
    return _Left(keep.nonzero().squeeze(1), images)


def _along(value: Any, rows: Tensor, length: int) -> Any:
    """What is given for each of `length` tokens, for some of them."""
    if isinstance(value, tuple):
        return tuple(_along(one, rows, length) for one in value)
    per_token = isinstance(value, Tensor) and value.ndim >= 2 and value.shape[1] == length
    return value[:, rows] if per_token else value


def _masked(mask: Any, rows: Tensor) -> Any:
    if mask is None:
        return None
    return mask[:, rows] if mask.ndim == 2 else mask[:, :, rows][..., rows]


def _named(module: Any, args: tuple, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**inspect.signature(module.forward).bind_partial(*args).arguments, **given}


@contextmanager
def _before(module: Any, note: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
    """Write down the arguments of a module, by name."""
    hook = module.register_forward_pre_hook(lambda _, args, given: note(_named(module, args, given)), with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _eager(decoder: Any) -> Iterator[None]:
    configs = {id(part.config): part.config for part in decoder.modules() if hasattr(part, "config")}.values()
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = {"": "eager"}
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = {"": name}


@contextmanager
def _biased(decoder: Any, bias_of: Callable[[int], Tensor | None]) -> Iterator[None]:
    """Attention with a bias that only the softmax sees: an indexer, which reads the mask too, must not."""

    def around(original: Any) -> Any:
        def attend(
            module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **options: Any
        ) -> Any:
            bias = bias_of(module.layer_idx)
            if bias is not None and mask is not None and mask.dtype == torch.bool:
                mask = torch.where(mask, 0.0, torch.finfo(query.dtype).min)
            mask = mask if bias is None else bias if mask is None else mask + bias
            return original(module, query, key, value, mask, *args, **options)

        return attend

    names = {ancestor.__module__ for part in decoder.modules() for ancestor in type(part).__mro__}
    files = [sys.modules[name] for name in names if hasattr(sys.modules.get(name), EAGER)]
    with ExitStack() as stack:
        for file in files:
            stack.enter_context(mock.patch.object(file, EAGER, around(getattr(file, EAGER))))
        yield
