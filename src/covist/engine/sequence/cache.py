"""Caches that know which keys they hold. What they know is part of the cache, so it goes wherever the cache goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache as cached
from typing import Any

import torch
import transformers.cache_utils as classes
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer

from covist.contract.method import AttentionRule
from covist.engine.running import current, inside_layers
from covist.engine.sequence.fixed import FixedKeys
from covist.engine.sequence.ledger import Ledger
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable

GROWING = (
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "DynamicIndexedLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
)
"""Classes of transformers whose keys are the last of those that a layer was given; older releases lack some."""
STATIC = (
    "StaticLayer",
    "StaticSlidingWindowLayer",
    "LinearAttentionAndStaticFullAttentionLayer",
    "LinearAttentionAndStaticSlidingWindowAttentionLayer",
)
"""Classes with room for a number of keys: all of those that a layer was given, or the last of them."""
QUANTISED = ("BaseQuantizedLayer", "QuantizedLayer")
"""Classes whose subclasses hold all keys that a layer was given, in fewer bits."""
RECURRENT = ("LinearAttentionLayer", "DummyLayer")
"""Classes without keys: removed tokens never enter their states, so there is nothing to know about them."""
STATES = {
    **dict.fromkeys(("keys", "values", "idx_keys"), (0, 2)),
    "indexer_keys": (0, 1),
    "indexer_position_ids": (1, 2),
}
"""What layers hold for every key, with the dimensions of samples and of keys; indexers have keys of their own."""


@dataclass
class Book:
    """What a compressed cache knows about its keys."""

    stages: dict[int, Ledger]  # first layer of a stage -> its ledger, in order of depth
    given: int  # tokens that the model was given
    rule: AttentionRule | None = None  # under which the cache was filled
    right_padded: bool = False  # whether a prompt ended in padding
    prepared: Any = None  # what decoding steps keep for the next one, as long as the stages stay
    fixed: FixedKeys | None = None  # of a static cache, whose steps leave the rest of the book behind

    def ledger(self, layer: int) -> Ledger:
        return self.stages[max(first for first in self.stages if first <= layer)]

    def change(self, step: Callable[[Ledger], Ledger]) -> None:
        """Change all ledgers, as their cache was changed."""
        self.catch_up()
        self.stages = {first: step(ledger) for first, ledger in self.stages.items()}
        self.prepared = None  # its rows are no longer those of the cache
        if self.fixed is not None:
            self.fixed.write(self.stages[0])

    def catch_up(self) -> None:
        """Write down the steps that a static cache has taken since it was last written to."""
        if self.fixed is not None:
            self.stages = {0: self.fixed.ledger(self.stages[0])}
            self.given = self.stages[0].given

    @property
    def reduced(self) -> bool:
        return any(ledger.reduced for ledger in self.stages.values())


def stage_ranges(stages: dict[int, Ledger], layers: int) -> list[tuple[range, Ledger]]:
    """The layers of every stage, with their ledger."""
    ends = [*list(stages)[1:], layers]
    return [(range(first, end), ledger) for (first, ledger), end in zip(stages.items(), ends, strict=True)]


class CompressedLayer:
    """Mixed into the class of a cache layer. Until the first compressed prefill it changes nothing.

    `get_seq_length` is the number of tokens that the model was given, because `generate` slices prompts and numbers
    positions by it. Inside the layers it is the number of keys, as their own arithmetic expects.
    """

    book: Book | None
    leads: bool  # whether it is the first layer with keys, which changes the book for all
    fixed: FixedKeys | None  # of the last book of a static cache, whose addresses the next one takes over

    def get_seq_length(self) -> int | Tensor:
        if self.book is None or inside_layers():
            length: int | Tensor = super().get_seq_length()  # type: ignore[misc]
            return length
        return self.book.given if self.book.fixed is None else self.book.fixed.given

    @property
    def held(self) -> int:
        """Keys that the layer was given, padding included; a sliding window may have forgotten the first of them."""
        return int(super().get_seq_length())  # type: ignore[misc]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        if self.book is None or inside_layers():
            sizes: tuple[int, int] = super().get_mask_sizes(query_length)  # type: ignore[misc]
            return sizes
        if current() is None:  # an uncompressed model: its mask would not fit the keys, and the weights would be lost
            raise CovistError("this cache was filled under compression; compress the model again to continue with it")
        # Rules are evaluated at any of the tokens that were given; the number only must not change from step to step.
        return self.book.given + query_length if self.book.fixed is None else self.book.fixed.room, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._changed("reorder_cache", beam_idx, lambda ledger: ledger.select(beam_idx))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._changed("batch_repeat_interleave", repeats, lambda ledger: ledger.repeat(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._changed("batch_select_indices", indices, lambda ledger: ledger.select(indices))

    def crop(self, tokens_to_remove: int) -> None:
        removed = max(0, -tokens_to_remove)
        if self.book is not None and self.leads and removed:
            for ledger in self.book.stages.values():  # before any layer is cropped
                ledger.check_crop(removed)
        self._changed("crop", tokens_to_remove, lambda ledger: ledger.crop(removed) if removed else ledger)
        if self.book is not None and self.leads:  # not if the original class has refused
            self.book.given -= removed

    def _changed(self, verb: str, argument: Any, step: Callable[[Ledger], Ledger]) -> None:
        """Let the original class change its keys by their true number, and the first layer the book of all."""
        book, self.book = self.book, None
        try:
            getattr(super(), verb)(argument)
        finally:
            self.book = book
        if book is not None and self.leads:
            book.change(step)

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        self.book = None

    def write(self, book: Book) -> None:
        self.book, self.fixed = book, book.fixed

    def take(self: Any, columns: Tensor) -> None:
        """Keep only these [batch, kept] of the keys that each sample was given.

        A window that has forgotten the first of them holds the last of those that are kept. Any key may stand in the
        place of a forgotten one, because its row is outside the window of every later query.
        """
        if not self.is_initialized:
            return
        forgotten = self.held - self.keys.shape[2]
        if hasattr(self, "cumulative_length"):
            self.cumulative_length = columns.shape[1]
        index = (columns[:, -self.keys.shape[2] :] - forgotten).clamp(min=0)
        for name, (batch, tokens) in STATES.items():
            states = getattr(self, name, None)
            if states is not None:
                shape = [1] * states.ndim
                shape[batch], shape[tokens] = index.shape
                setattr(self, name, states.take_along_dim(index.view(shape).to(states.device), tokens))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _restored, (type(self).__mro__[2], self.__dict__)  # the class is made anew: it has no name to import


@cached
def compressed_class(original: type) -> type:
    """A class of cache layers that knows which keys it holds."""
    # With a `_layer_type`, transformers would register the class for all new caches.
    made = type(f"Compressed{original.__name__}", (CompressedLayer, original), {"_layer_type": None})
    vars_of: Any = made
    vars_of._layer_type = getattr(original, "_layer_type", None)
    return made


def _restored(original: type, state: dict[str, Any]) -> Any:
    layer: Any = object.__new__(compressed_class(original))
    layer.__dict__.update(state)
    return layer


def book_of(cache: Cache | None) -> Book | None:
    """What a cache knows about its keys, if it was filled under compression."""
    layers = () if cache is None else cache.layers
    return next((layer.book for layer in layers if isinstance(layer, CompressedLayer)), None)


def compressed_layers(cache: Cache) -> dict[int, Any]:
    """The layers of a cache that `adopt` has converted, by their number."""
    return {number: layer for number, layer in enumerate(cache.layers) if isinstance(layer, CompressedLayer)}


def adopt(cache: Cache | None, decoder: Any) -> Cache:
    """Let every layer of `cache` that holds keys know them (cached keys stay); create a cache if there is none."""
    if cache is not None and book_of(cache) is not None:
        return cache
    cache = DynamicCache(config=decoder.config) if cache is None else cache
    if cache.layer_class_to_replicate is not None:  # made without the decoder's configuration: layers come with use
        cache.layers += [cache.layer_class_to_replicate() for _ in range(len(decoder.layers) - len(cache.layers))]
    for layer in cache.layers:
        if not isinstance(layer, CompressedLayer) and not _holds_keys(layer) and type(layer) not in _named(RECURRENT):
            raise CovistError(
                f"compression does not know which keys a {type(layer).__name__} of {type(cache).__name__} holds; omit "
                "`cache_implementation` and `past_key_values`, or pass a DynamicCache"
            )
    for number, layer in enumerate(cache.layers):
        if not isinstance(layer, CompressedLayer) and _holds_keys(layer):
            unknown = {"book": None, "leads": False, "fixed": None}
            cache.layers[number] = _restored(type(layer), {**layer.__dict__, **unknown})
    for place, layer in enumerate(compressed_layers(cache).values()):
        layer.leads = place == 0
    return cache


@contextmanager
def prepares_no_mask(cache: Cache) -> Iterator[None]:
    """Let `generate` take a cache for one that does not need its masks prepared."""
    first: Any = cache.layers[0]
    first.is_compileable = False  # of this layer, in front of its class's
    try:
        yield
    finally:
        del first.is_compileable


def room_of(layers: Iterable[Any], config: Any) -> int | None:
    """How many keys a static cache can be given; None: it is not static."""
    static = [layer for layer in layers if isinstance(layer, StaticLayer)]
    if not static:
        return None
    whole = [layer.max_cache_len for layer in static if not layer.is_sliding]
    return max(whole) if whole else int(config.max_position_embeddings)  # windows forget, and go on without end


def quantised_classes() -> tuple[type, ...]:
    return tuple(_named(QUANTISED))


def _holds_keys(layer: Any) -> bool:
    return _grows(layer) or type(layer) in _named(STATIC) or isinstance(layer, quantised_classes())


def _grows(layer: Any) -> bool:
    """Whether the keys of a layer are the last that it was given; its class may hold those of an indexer too."""
    kind = type(layer)
    if kind in _named(GROWING):
        return True
    more = vars(layer).keys() - vars(DynamicLayer()).keys() - {"dtype", "device"}
    return issubclass(kind, DynamicLayer) and kind.update is DynamicLayer.update and more <= STATES.keys()


def _named(names: Iterable[str]) -> list[type]:
    return [getattr(classes, name) for name in names if hasattr(classes, name)]


def check_rule(book: Book, rule: AttentionRule | None) -> None:
    """Refuse a cache whose images were reduced under another attention rule than `rule`."""
    if book.rule is rule or not book.reduced:
        return
    if not same_rule(book.rule, rule):
        raise CovistError(
            "this cache was filled by a method with another attention rule; continue with the handle that filled it, "
            "or start again from the prompt"
        )
    book.rule, book.prepared = rule, None  # so that the next check is one comparison


def same_rule(one: AttentionRule | None, other: AttentionRule | None) -> bool:
    """Whether two rules are equal, as those of two handles with the same settings are."""
    if one is None or other is None:
        return one is other
    return all(_equal(getattr(one, item.name), getattr(other, item.name)) for item in fields(AttentionRule))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, DistanceTable) and isinstance(other, DistanceTable):
        return torch.equal(one.axes, other.axes)  # not the frequencies, which dynamic scaling changes within a cache
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, AttentionRule):
        return same_rule(one, other)
    return bool(one == other)
