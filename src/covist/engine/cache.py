"""Cache layers that know which keys they hold. The ledger lives in the cache, so it follows it everywhere."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from covist.engine.ledger import Ledger
from covist.errors import CovistError


class StageLayer(DynamicLayer):
    """The cache of one decoder layer after compression.

    `get_seq_length` answers with the number of tokens the model was given, not with the number of keys kept, because
    `generate` slices prompts and numbers positions by it. Layers of one stage share a ledger; the first of them owns it
    and applies reordering to it once. Before its first compressed prefill it is an ordinary dynamic layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger | None = None
        self.owns_ledger = False
        self.removed = 0  # tokens that the model was given but whose keys are not here
        self.right_padded = False  # whether a prompt ended in padding

    def get_seq_length(self) -> int:
        return self.kept + self.removed

    @property
    def kept(self) -> int:
        """Number of keys in the cache, padding included."""
        return super().get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # Only a model without compression asks: its mask would not fit the keys, and the weights would be lost.
        if self.ledger is not None:
            raise CovistError("this cache was filled under compression; compress the model again to continue with it")
        return super().get_mask_sizes(query_length)

    def _on_ledger(self, verb: str, *args: Any) -> None:
        if self.owns_ledger and self.ledger is not None:
            getattr(self.ledger, verb)(*args)

    def reorder_cache(self, beam_idx: Tensor) -> None:
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
        self.ledger, self.owns_ledger, self.removed, self.right_padded = None, False, 0, False


def stage_layers(cache: Cache | None) -> list[StageLayer]:
    """The cache's layers if it was filled under compression, else an empty list."""
    layers = cache.layers if cache is not None else []
    return list(layers) if layers and isinstance(layers[0], StageLayer) and layers[0].ledger is not None else []


def adopt(cache: Cache | None, decoder: nn.Module) -> DynamicCache:
    """Make every layer of `cache` a `StageLayer` (keys already cached stay); a new cache if there is none."""
    cache = DynamicCache(config=decoder.config) if cache is None else cache
    for layer in cache.layers:
        if type(layer) not in (DynamicLayer, StageLayer):
            raise CovistError(
                f"compression needs a dynamic cache, got {type(cache).__name__} with {type(layer).__name__}: "
                "the layers hold different numbers of keys, which static (compiled) and quantised caches cannot. "
                "Drop `cache_implementation`"
            )
    if not isinstance(cache, DynamicCache) or cache.offloading:
        kind = "an offloaded one" if isinstance(cache, DynamicCache) else f"a {type(cache).__name__}"
        raise CovistError(f"compression needs a plain DynamicCache, not {kind}; drop `cache_implementation`")
    plain = list(cache.layers) + [DynamicLayer() for _ in range(len(decoder.layers) - len(cache.layers))]
    cache.layers = [_adopt_layer(layer) for layer in plain]
    return cache


def _adopt_layer(layer: DynamicLayer) -> StageLayer:
    if isinstance(layer, StageLayer):
        return layer
    stage = StageLayer()
    if layer.is_initialized:
        stage.lazy_initialization(layer.keys, layer.values)
        stage.keys, stage.values = layer.keys, layer.values
    return stage
