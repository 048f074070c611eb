"""What methods before the decoder read of a vLLM model's: its shape, its rotary frequencies, its head gains."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from covist.engine.projections import row_norms
from covist.engine.rotation import axes_of
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable, head_gains, projection_energy

GatherHeads = Callable[[Tensor, int], Tensor]
"""(values of this rank [heads, ...], number of heads of all ranks) -> values of all ranks."""
NEEDED = ("qkv_proj", "attn", "total_num_heads", "total_num_kv_heads", "head_dim", "q_size", "kv_size")


class ServedDecoder:
    """The part of a `Decoder` that is read before it runs; its layers have `self_attn` with a fused `qkv_proj`."""

    def __init__(self, module: Any, rotary: Any, gather_heads: GatherHeads):
        """`rotary`: transformers' module for the positions of this decoder."""
        self._module, self._gather = module, gather_heads
        attention = self.attention_of(0)
        self.layers = len(module.layers)
        self.heads: int = attention.total_num_heads
        self.kv_heads: int = attention.total_num_kv_heads
        self.head_width: int = attention.head_dim
        self.hidden: int = rotary.config.hidden_size
        turning = rotary.inv_freq.float().cpu()
        self.frequencies = torch.cat([turning, turning.new_zeros(self.head_width // 2 - len(turning))])
        self._axes = axes_of(rotary)
        self._energies: list[Tensor | None] | None = None

    def attention_of(self, layer: int) -> Any:
        """The attention module of a layer, if it has the usual form."""
        attention = getattr(self._module.layers[layer], "self_attn", None)
        missing = [name for name in NEEDED if not hasattr(attention, name)]
        if missing:
            raise CovistError(
                f"{type(self._module).__name__}: layer {layer} has no self_attn with {', '.join(missing)}; in vLLM, "
                "methods that read the vision tower need text models like Llama, Mistral, Qwen2 and Qwen3"
            )
        return attention

    def reads(self, layer: int) -> bool:
        return True  # `attention_of` refuses other models

    @cached_property
    def distances(self) -> tuple[DistanceTable, ...]:
        axes = None if self._axes is None else self._axes.of_frequencies
        return (DistanceTable(self.frequencies, axes),) * self.layers

    # -- inputs and projections of layers ----------------------------------------------------------------------------

    def first_input(self, embeddings: Tensor) -> Tensor:
        return embeddings

    def queries(self, layer: int, hidden: Tensor) -> Tensor:
        return self._project(layer, hidden, 0)

    def keys(self, layer: int, hidden: Tensor) -> Tensor:
        return self._project(layer, hidden, 1)

    def scale(self, layer: int) -> float:
        return self.attention_of(layer).scaling

    def _project(self, layer: int, hidden: Tensor, part: int) -> Tensor:
        """[heads, tokens, head width] in float32 of all ranks."""
        attention = self.attention_of(layer)
        fused, _ = attention.qkv_proj(self._module.layers[layer].input_layernorm(hidden))
        own = fused.split([attention.q_size, attention.kv_size, attention.kv_size], -1)[part]
        states = own.unflatten(-1, (-1, self.head_width))  # [tokens, heads, w]
        norm = _norms_after(attention)[part]
        states = states if norm is None else norm(states)
        return self._gather(states.transpose(0, 1).float().contiguous(), (self.heads, self.kv_heads)[part])

    # -- head gains --------------------------------------------------------------------------------------------------

    def head_gains(self, gain_range: tuple[float, float]) -> Tensor:
        """Gains of Eq. 10; ones until the weights have been read."""
        if self._energies is None:
            return torch.ones(self.layers, self.heads, dtype=torch.float32)
        return head_gains(self._energies, [self.frequencies] * self.layers, gain_range)

    @torch.no_grad()
    def read_weights(self) -> None:
        """Compute the projection energies of all layers from the current weights."""
        self._energies = [self._energy(self.attention_of(layer)) for layer in range(self.layers)]

    def _energy(self, attention: Any) -> Tensor:
        norms = _fused_row_norms(attention.qkv_proj, self.hidden)
        query, key, _ = norms.split([attention.q_size, attention.kv_size, attention.kv_size])
        query = self._gather(query.view(-1, self.head_width), self.heads)
        key = self._gather(key.view(-1, self.head_width), self.kv_heads)
        after = [1 if norm is None else norm.weight.detach().float().cpu() for norm in _norms_after(attention)]
        return projection_energy(query * after[0], key * after[1])


def _norms_after(attention: Any) -> tuple[Any, Any]:
    """The norms over each head of the queries and of the keys, if the model has them."""
    return getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)


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
