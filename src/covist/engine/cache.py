"""Cache layers that know which keys they hold. The ledger is part of the cache, so it goes wherever the cache goes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from covist.contract.method import AttentionRule
from covist.engine.conversation import Conversation
from covist.engine.ledger import Ledger
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable


class StageLayer(DynamicLayer):
    """The cache of one decoder layer after compression.

    `get_seq_length` returns the number of tokens the model was given, not the number of keys kept, because `generate`
    slices prompts and numbers positions by it. Layers of one stage share a ledger; the first layer owns it and reorders
    it once. Before its first compressed prefill, this is an ordinary dynamic layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger | None = None
        self.owns_ledger = False
        self.removed = 0  # tokens that the model was given but whose keys are not here
        self.right_padded = False  # whether a prompt ended in padding
        self.rule: AttentionRule | None = None  # the rule under which it was filled
        self.conversation: Conversation | None = None  # in the first layer, if a later question may choose again

    def get_seq_length(self) -> int:
        return self.kept + self.removed

    @property
    def kept(self) -> int:
        """Number of keys in the cache, padding included."""
        return super().get_seq_length()

    def take(self, columns: Tensor) -> None:
        """Keep only these keys [batch, kept] of each sample."""
        assert self.keys is not None and self.values is not None, "the layer has seen a prefill"
        index = columns.to(self.keys.device)[:, None, :, None]
        self.keys, self.values = (
            states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))
            for states in (self.keys, self.values)
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # Only an uncompressed model calls this: its mask would not fit the keys, and the weights would be lost.
        if self.ledger is not None:
            raise CovistError("this cache was filled under compression; compress the model again to continue with it")
        return super().get_mask_sizes(query_length)

    def _on_ledger(self, verb: str, *args: Any) -> None:
        self.conversation = None  # its rows are no longer those of the cache
        if self.owns_ledger and self.ledger is not None:
            getattr(self.ledger, verb)(*args)

    def reorder_cache(self, beam_idx: Any) -> None:
        super().reorder_cache(beam_idx)
        self._on_ledger("rearrange", beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._on_ledger("repeat", repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._on_ledger("rearrange", indices)

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove < 0:
            self._on_ledger("crop", -tokens_to_remove)
        super().crop(tokens_to_remove)

    def reset(self) -> None:
        super().reset()
        self.ledger, self.owns_ledger, self.removed, self.right_padded, self.rule = None, False, 0, False, None
        self.conversation = None


def stage_layers(cache: Cache | None) -> list[StageLayer]:
    """The cache's layers if it was filled under compression, else an empty list."""
    stages = [] if cache is None else adopted_layers(cache)
    return stages if stages and stages[0].ledger is not None else []


def adopted_layers(cache: Cache) -> list[StageLayer]:
    """The layers of a cache that `adopt` has converted."""
    return [layer for layer in cache.layers if isinstance(layer, StageLayer)]


def check_rule(layers: list[StageLayer], rule: AttentionRule | None) -> None:
    """Refuse a cache whose images were reduced under another attention rule than `rule`."""
    filled = layers[0].rule
    if filled is rule or not any(layer.ledger is not None and layer.ledger.reduced for layer in layers):
        return
    if not same_rule(filled, rule):
        raise CovistError(
            "this cache was filled by a method with another attention rule; continue with the handle that filled it, "
            "or start again from the prompt"
        )
    for layer in layers:  # so that the next check is one comparison
        layer.rule = rule


def same_rule(one: AttentionRule | None, other: AttentionRule | None) -> bool:
    """Whether two rules are equal, as those of two handles with the same settings are."""
    if one is None or other is None:
        return one is other
    if one.scale.shape != other.scale.shape or not torch.equal(one.scale.cpu(), other.scale.cpu()):
        return False
    if not all(_same_distances(one.distance(layer), other.distance(layer)) for layer in range(len(one.scale))):
        return False
    flags = [item.name for item in fields(AttentionRule) if item.name not in ("scale", "distances")]
    return all(getattr(one, name) == getattr(other, name) for name in flags)


def _same_distances(first: DistanceTable | None, second: DistanceTable | None) -> bool:
    if first is None or second is None or first is second:
        return first is second
    return torch.equal(first.inverse_frequencies, second.inverse_frequencies) and torch.equal(first.axes, second.axes)


def adopt(cache: Cache | None, decoder: Any) -> DynamicCache:
    """Make every layer of `cache` a `StageLayer` (cached keys stay); create a cache if there is none."""
    cache = DynamicCache(config=decoder.config) if cache is None else cache
    for layer in cache.layers:
        if type(layer) not in (DynamicLayer, StageLayer):
            raise CovistError(
                f"compression needs a dynamic cache, got {type(cache).__name__} with {type(layer).__name__}: "
                "the layers hold different numbers of keys, which static (compiled) and quantised caches cannot do; "
                "omit `cache_implementation`"
            )
    if not isinstance(cache, DynamicCache) or cache.offloading:
        kind = "an offloaded one" if isinstance(cache, DynamicCache) else f"a {type(cache).__name__}"
        raise CovistError(f"compression needs a plain DynamicCache, not {kind}; omit `cache_implementation`")
    missing = len(decoder.layers) - len(cache.layers)
    cache.layers = [_adopt_layer(layer) for layer in (*cache.layers, *(StageLayer() for _ in range(missing)))]
    return cache


def _adopt_layer(layer: Any) -> StageLayer:
    if isinstance(layer, StageLayer):
        return layer
    stage = StageLayer()
    if layer.is_initialized:
        stage.lazy_initialization(layer.keys, layer.values)
        stage.keys, stage.values = layer.keys, layer.values
    return stage
