"""A decoder whose caches are cut back after prefill, written out layer by layer on the plain model's own layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache


class CutCaches:
    """One conversation. Prefill runs the layers before `cut` on all tokens and the others on the survivors; then the
    layers before `cut` lose what did not survive too, except the first `whole` ones."""

    def __init__(self, model: Any, cut: int, whole: int, reindex: bool = False):
        self._model, self._decoder = model, model.model.language_model
        self._cut, self._whole, self._reindex = cut, whole, reindex
        self._cache = DynamicCache(config=self._decoder.config)
        self._seen = 0

    def prefill(self, embeddings: Tensor, survivors: Tensor) -> Tensor:
        """Logits after a turn [n, d] of which only the rows `survivors` stay."""
        rows, hidden = torch.arange(len(embeddings)), embeddings
        for index in range(len(self._decoder.layers)):
            if index == self._cut:
                rows, hidden = survivors, hidden[survivors]
            hidden = self._run(index, hidden, rows)
        for layer in self._cache.layers[self._whole : self._cut]:
            earlier = layer.keys.shape[2] - len(embeddings)
            columns = torch.cat([torch.arange(earlier), earlier + survivors])
            layer.keys, layer.values = layer.keys[:, :, columns], layer.values[:, :, columns]
        return self._finish(hidden, len(embeddings))

    def feed(self, embeddings: Tensor) -> Tensor:
        """Logits after text [n, d]."""
        return self.prefill(embeddings, torch.arange(len(embeddings)))

    def _run(self, index: int, hidden: Tensor, rows: Tensor) -> Tensor:
        """One layer on rows of the turn, which see what its cache holds and the rows before them."""
        past = self._cache.get_seq_length(index) if index < len(self._cache.layers) else 0
        positions = self._seen + rows
        if self._reindex and index >= self._cut:
            positions = past + torch.arange(len(rows))
        blocked = torch.full((len(rows), len(rows)), torch.finfo(torch.float32).min).triu(1)
        mask = torch.cat([torch.zeros(len(rows), past), blocked], 1)[None, None]
        output = self._decoder.layers[index](
            hidden[None],
            attention_mask=mask,
            position_ids=positions[None],
            past_key_values=self._cache,
            position_embeddings=self._decoder.rotary_emb(hidden[None], positions[None]),
        )
        return (output[0] if isinstance(output, tuple) else output)[0]

    def _finish(self, hidden: Tensor, tokens: int) -> Tensor:
        self._seen += tokens
        return self._model.lm_head(self._decoder.norm(hidden[-1]))
