"""Access to a frozen decoder: projections of chosen tokens, rotary embeddings, and the closed-form head gains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer

from covist.contract.decoder import Decoder, Rotary
from covist.engine.interface import backend_of, takes_no_mask
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable, head_gains, projection_energy
from covist.formulas.rotary import rotate
from covist.formulas.wide_heads import COLUMNS

BACKENDS = ("eager", "sdpa", "flex_attention")
WIDEST_HEAD = 256  # of flash attention


class FrozenDecoder(Decoder):
    """A decoder-only text model seen through its modules, so that wrapped and sharded projections keep working."""

    def __init__(self, module: Any, rotary_axes: Sequence[int] | None = None):
        _require_plain_attention(module)
        self.module = module
        self.rotary_axes = rotary_axes
        config = module.config
        self.layers = len(module.layers)
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_width: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.hidden: int = config.hidden_size
        self.intermediate: int = config.intermediate_size

    def check_backend(self) -> str:
        """The attention backend in use, if it can take a bias or wide heads."""
        backend = backend_of(self.module)
        wide = takes_no_mask(backend)
        if wide and self.head_width + COLUMNS <= WIDEST_HEAD or backend in BACKENDS:
            return backend
        reason = f"has no room for a bias in heads of {self.head_width}" if wide else "is not known to take a bias"
        raise CovistError(
            f"attention implementation {backend!r} {reason}; use one of {', '.join(BACKENDS)}: "
            "model.set_attn_implementation({'text_config': 'sdpa'})"
        )

    @property
    def inverse_frequencies(self) -> Tensor:
        """The host model's RoPE frequencies after its scaling, [head width / 2]."""
        return self.module.rotary_emb.inv_freq.float()

    @cached_property
    def distance_table(self) -> DistanceTable:
        return DistanceTable(self.inverse_frequencies, self.rotary_axes)

    def per_axis(self, positions: Tensor) -> Tensor:
        """Positions as the model is given them -> [batch, tokens], or [batch, tokens, axes] for multidimensional RoPE.

        A multidimensional model may be given [axes, batch, tokens], with text positions in front as one axis more, or
        one component that counts for all axes.
        """
        if self.rotary_axes is None:
            return positions
        axes = max(self.rotary_axes) + 1
        return positions.reshape(-1, *positions.shape[-2:])[-axes:].expand(axes, -1, -1).permute(1, 2, 0)

    def rotary(self, hidden: Tensor, positions: Tensor) -> Rotary:
        """cos and sin [batch, tokens, head width] for positions [batch, tokens] or [batch, tokens, axes]."""
        positions = positions.to(hidden.device)
        return self.module.rotary_emb(hidden, positions if positions.ndim == 2 else positions.permute(2, 0, 1))

    def normed(self, layer: int, hidden: Tensor) -> Tensor:
        """Hidden states [tokens, d] after the input norm of a layer."""
        return self.module.layers[layer].input_layernorm(hidden)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Hidden states [tokens, d] after the norm that ends the decoder."""
        return self.module.norm(hidden)

    def queries(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[heads, tokens, head width] in float32, rotated if `rotary` is given."""
        return self._project("q_proj", layer, hidden, rotary)

    def keys(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[kv heads, tokens, head width] in float32, rotated if `rotary` is given."""
        return self._project("k_proj", layer, hidden, rotary)

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        """[kv heads, tokens, head width] in float32."""
        return self._project("v_proj", layer, hidden, None)

    def _project(self, name: str, layer: int, hidden: Tensor, rotary: Rotary | None) -> Tensor:
        projection = getattr(self.module.layers[layer].self_attn, name)
        # A layer on another device answers there; the method's arithmetic stays where it is.
        states = projection(self.normed(layer, hidden)).to(hidden.device, torch.float32)
        states = states.view(hidden.shape[0], -1, self.head_width).transpose(0, 1)
        return states if rotary is None else rotate(states, *rotary)

    @cached_property
    def projection_energies(self) -> list[Tensor]:
        """E of Eq. 10 for every layer, [heads, head width / 2] each."""
        return [
            projection_energy(
                row_norms(layer.self_attn.q_proj, self.hidden).view(self.heads, -1),
                row_norms(layer.self_attn.k_proj, self.hidden).view(self.kv_heads, -1),
            )
            for layer in self.module.layers
        ]

    def head_gains(self, gain_range: tuple[float, float]) -> Tensor:
        """Closed-form gains of Eq. 10 over all layers and heads, [layers, heads]."""
        return head_gains(self.projection_energies, self.inverse_frequencies.cpu(), gain_range)


def _require_plain_attention(module: nn.Module) -> None:
    """Refuse decoders whose layers cannot be read or whose caches cannot be shortened."""
    attention = module.layers[0].self_attn
    missing = [name for name in ("q_proj", "k_proj", "v_proj") if not hasattr(attention, name)]
    if missing:
        raise CovistError(
            f"{type(attention).__name__} has no {', '.join(missing)}: fused projections are not supported"
        )
    caches = {type(layer).__name__ for layer in DynamicCache(config=module.config).layers} - {DynamicLayer.__name__}
    if caches:
        raise CovistError(
            f"{type(module).__name__} keeps its keys in {', '.join(sorted(caches))}, which cannot hold a compressed "
            "prompt; a sliding window is switched off by text_config.sliding_window=None when the model is loaded"
        )


@torch.no_grad()
def row_norms(projection: nn.Module, width: int) -> Tensor:
    """Euclidean norm of each row of a linear projection's weight, [out], on the CPU.

    A plain linear layer is read directly. Anything else (quantised, LoRA-wrapped, offloaded) is asked by pushing an
    identity through it and subtracting its response to zero, which removes a bias.
    """
    if type(projection) is nn.Linear and not projection.weight.is_meta:
        return torch.linalg.vector_norm(projection.weight, dim=1, dtype=torch.float32).cpu()
    parameter = next((p for p in projection.parameters() if p.is_floating_point()), None)
    options: dict[str, Any] = {} if parameter is None else {"dtype": parameter.dtype}
    if parameter is not None and not parameter.is_meta:  # an offloaded module takes its input from anywhere
        options["device"] = parameter.device
    offset = projection(torch.zeros(1, width, **options)).float()
    squares = torch.zeros(offset.shape[-1], dtype=torch.float32, device=offset.device)
    for start in range(0, width, 512):  # chunks keep the response small next to the weight itself
        rows = torch.arange(start, min(start + 512, width))
        probe = torch.zeros(len(rows), width, **options)
        probe[torch.arange(len(rows)), rows] = 1
        squares += (projection(probe).float() - offset).square().sum(0)
    return squares.sqrt().cpu()
