"""What methods read of the decoder of a vLLM model: its shape, its rotary frequencies, its head gains."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from covist.contract.decoder import Decoder, Rotary
from covist.engine.projections import row_norms
from covist.engine.rotation import axes_of
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable, head_gains, projection_energy

GatherHeads = Callable[[Tensor, int], Tensor]
"""(values of this rank [heads, ...], number of heads of all ranks) -> values of all ranks."""


def rotary_module(text_config: Any) -> Any:
    """transformers' own rotary module of a text model, whose weights are not allocated."""
    with torch.device("meta"):
        skeleton = AutoModel.from_config(text_config)
    with torch.device("cpu"):
        return type(skeleton.rotary_emb)(config=text_config)


class ServedDecoder(Decoder):
    """A decoder whose layers have `self_attn` with a fused `qkv_proj` and call `self.attn(q, k, v)`."""

    def __init__(self, module: Any, text_config: Any, gather_heads: GatherHeads):
        self._module, self._gather = module, gather_heads
        attention = self.attention_of(0)
        self.layers = len(module.layers)
        self.heads: int = attention.total_num_heads
        self.kv_heads: int = attention.total_num_kv_heads
        self.head_width: int = attention.head_dim
        self.hidden: int = text_config.hidden_size
        rotary = rotary_module(text_config)
        self._frequencies, self._axes = rotary.inv_freq.float(), axes_of(rotary)
        self._energies: list[Tensor | None] | None = None

    def attention_of(self, layer: int) -> Any:
        """The attention module of a layer, if it has the usual form."""
        attention = getattr(self._module.layers[layer], "self_attn", None)
        needed = ("qkv_proj", "attn", "total_num_heads", "total_num_kv_heads", "head_dim", "q_size", "kv_size")
        missing = [name for name in needed if not hasattr(attention, name)]
        if missing:
            raise CovistError(
                f"{type(self._module).__name__}: layer {layer} has no self_attn with {', '.join(missing)}; "
                "in vLLM, only text models like Llama, Mistral, Qwen2 and Qwen3 can be compressed"
            )
        return attention

    @property
    def name(self) -> str:
        return type(self._module).__name__

    def reads(self, layer: int) -> bool:
        return True  # `attention_of` refuses other models

    @property
    def unread(self) -> dict[int, str]:
        return {}

    # -- positions ---------------------------------------------------------------------------------------------------

    def frequencies(self, layer: int) -> Tensor:
        still = self._frequencies.new_zeros(self.head_width // 2 - len(self._frequencies))
        return torch.cat([self._frequencies, still])

    @cached_property
    def distances(self) -> tuple[DistanceTable, ...]:
        axes = None if self._axes is None else self._axes.of_frequencies
        return (DistanceTable(self.frequencies(0), axes),) * self.layers

    # -- inputs and projections of layers ----------------------------------------------------------------------------

    def first_input(self, embeddings: Tensor) -> Tensor:
        return embeddings

    def queries(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        return self._project(layer, hidden, 0, rotary)

    def keys(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        return self._project(layer, hidden, 1, rotary)

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        return self._project(layer, hidden, 2, None)

    def rotate(self, layer: int, states: Tensor, rotary: Rotary) -> Tensor:
        raise TypeError("in vLLM, methods act before the decoder and rotate nothing")

    def scale(self, layer: int) -> float:
        return self.attention_of(layer).scaling

    def final_norm(self, hidden: Tensor) -> Tensor:
        return self._module.norm(hidden)

    def _project(self, layer: int, hidden: Tensor, part: int, rotary: Rotary | None) -> Tensor:
        """[heads, tokens, head width] in float32 of all ranks."""
        if rotary is not None:
            raise TypeError("in vLLM, methods act before the decoder and rotate nothing")
        attention = self.attention_of(layer)
        fused, _ = attention.qkv_proj(self._module.layers[layer].input_layernorm(hidden))
        own = fused.split([attention.q_size, attention.kv_size, attention.kv_size], -1)[part]
        states = own.unflatten(-1, (-1, self.head_width))  # [tokens, heads, w]
        norm = getattr(attention, ("q_norm", "k_norm", "v_norm")[part], None)
        if norm is not None:
            states = norm(states)
        heads = self.heads if part == 0 else self.kv_heads
        return self._gather(states.transpose(0, 1).float().contiguous(), heads)

    # -- head gains --------------------------------------------------------------------------------------------------

    def head_gains(self, gain_range: tuple[float, float]) -> Tensor:
        """Gains of Eq. 10; ones until the weights have been read."""
        if self._energies is None:
            return torch.ones(self.layers, self.heads, dtype=torch.float32)
        return head_gains(self._energies, [self.frequencies(0)] * self.layers, gain_range)

    @torch.no_grad()
    def read_weights(self) -> None:
        """Compute the projection energies of all layers from the current weights."""
        self._energies = [self._energy(self.attention_of(layer)) for layer in range(self.layers)]

    def _energy(self, attention: Any) -> Tensor:
        norms = _fused_row_norms(attention.qkv_proj, self.hidden)
        query, key, _ = norms.split([attention.q_size, attention.kv_size, attention.kv_size])
        query = self._gather(query.view(-1, self.head_width), self.heads)
        key = self._gather(key.view(-1, self.head_width), self.kv_heads)
        norms_after = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        return projection_energy(_after_norm(query, norms_after[0]), _after_norm(key, norms_after[1]))


def _fused_row_norms(projection: Any, width: int) -> Tensor:
    """Norm of each row of a fused projection, however its weight is stored."""
    weight = getattr(projection, "weight", None)
    plain = weight is not None and weight.is_floating_point() and weight.dim() == 2 and weight.shape[1] == width
    if plain:
        return torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32).cpu()
    return row_norms(_FirstOutput(projection), width)


class _FirstOutput(nn.Module):
    """A linear layer of vLLM without the bias that it also returns."""

    def __init__(self, projection: nn.Module):
        super().__init__()
        self.projection = projection

    def forward(self, states: Tensor) -> Tensor:
        return self.projection(states)[0]


def _after_norm(norms: Tensor, norm: Any) -> Tensor:
    """Row norms [heads, w] of a projection, scaled by the weight of the norm over each head that follows, if any."""
    return norms if norm is None else norms * norm.weight.detach().float().cpu()
