"""The slow reference over any text model: its own layers with a dense bias, and gains from literal weights.

Nothing here makes queries or keys: `Watched` looks at what the model's attention function is given, and the layers run
as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from reference import attention
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from support.slow_llava import SlowLlava

WATCHING = "watched-by-a-test"


class Watched:
    """Per layer what the attention function was given, in a plain forward of the text model."""

    def __init__(self, decoder: Any, embeddings: Tensor):
        seen = []

        def watch(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
            seen.append((query[0], key[0], value[0], options["scaling"]))
            return sdpa_attention_forward(module, query, key, value, mask, **options)

        AttentionInterface.register(WATCHING, watch)
        entered = []
        hooks = [
            layer.register_forward_pre_hook(lambda module, args: entered.append(args[0][0])) for layer in decoder.layers
        ]
        before = decoder.config._attn_implementation
        decoder.config._attn_implementation = WATCHING
        try:
            decoder(inputs_embeds=embeddings[None], use_cache=False)
        finally:
            decoder.config._attn_implementation = before
            for hook in hooks:
                hook.remove()
        self.hidden = entered  # [n, d] per layer
        self.queries, self.keys, self.values, self.scale = zip(*seen, strict=True)


class SlowTextModel(SlowLlava):
    """`SlowLlava` for any text model: effective rows of its projections in, its own layers for the rest."""

    def __init__(self, model: Any, pro: bool):
        self.model, self.decoder = model, model.model.language_model
        config, layers = self.decoder.config, self.decoder.layers
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(layers[0].self_attn, "head_dim", None) or config.hidden_size // self.heads
        theta = self.decoder.rotary_emb.inv_freq.double().numpy()
        self.theta = np.concatenate([theta, np.zeros(self.width // 2 - len(theta))])
        self.axes = np.zeros(len(self.theta), dtype=int)
        self.rotated = [bool(getattr(layer.self_attn, "use_rope", True)) for layer in layers]
        rows = [
            [self.rows(layer.self_attn, *kind) for kind in (("q", self.heads), ("k", self.kv_heads))]
            for layer, rotated in zip(layers, self.rotated, strict=True)
            if rotated
        ]
        self.gains = np.ones((len(layers), self.heads))
        self.gains[self.rotated] = attention.head_gains([q for q, _ in rows], [k for _, k in rows], self.theta)
        if pro:
            self.gains[: (14 * len(layers) + 16) // 32] *= 0.8

    def rows(self, block: Any, kind: str, heads: int) -> np.ndarray:
        """Rows of a projection with the weight of its norm, in split-half order [heads, dh, d]."""
        weight = getattr(block, f"{kind}_proj").weight.detach().double()
        weight = weight.view(heads, -1, weight.shape[-1])[:, : self.width]
        names = (f"{kind}_norm", f"{kind}_layernorm", {"q": "query_layernorm", "k": "key_layernorm"}[kind])
        for name in names:
            norm = getattr(block, name, None)
            if norm is not None:
                gamma = torch.stack([part.weight for part in norm.norms]) if hasattr(norm, "norms") else norm.weight
                gamma = gamma.double() + (1 if "Next" in type(norm).__name__ else 0)
                gamma = gamma.view(heads, -1) if gamma.numel() > self.width else gamma.expand(heads, self.width)
                weight = weight * gamma[..., None]
        turning = 2 * len(self.decoder.rotary_emb.inv_freq)
        order = list(range(turning))
        if type(block).__name__.startswith(("Cohere", "Glm", "Ernie")):
            order = [*order[::2], *order[1::2]]
        rest = list(range(turning, self.width))
        half, left = turning // 2, len(rest) // 2
        places = [*order[:half], *rest[:left], *order[half:], *rest[left:]]
        return weight[:, places].detach().numpy()

    def _bias(self, depth: int, rows: list[int], positions: np.ndarray, states: list) -> Tensor:
        """Without rotary no token is far from another."""
        return super()._bias(depth, rows, positions if self.rotated[depth] else 0 * positions, states)

    def _enter(self, ids: list[int], shown: Any, images: list) -> Any:
        hidden, rows, states = super()._enter(ids, shown, images)
        return hidden * getattr(self.decoder, "embedding_multiplier", 1), rows, states

    def final_norm(self, hidden: Tensor) -> Tensor:
        return (self.decoder.norm if hasattr(self.decoder, "norm") else self.decoder.final_layernorm)(hidden)

    def _layer(self, layer: nn.Module, hidden: Tensor, angles: np.ndarray, bias: Tensor) -> Tensor:
        positions = torch.from_numpy(angles[:, 0]).round().long()[None]  # the first frequency is 1
        output = layer(
            hidden[None],
            attention_mask=bias[None],
            position_ids=positions,
            position_embeddings=self.decoder.rotary_emb(hidden[None], positions),
        )
        return (output[0] if isinstance(output, tuple) else output)[0]
