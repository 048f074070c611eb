"""Access to a frozen decoder: projections of chosen tokens, rotary embeddings, and the closed-form head gains.

Nothing here decides whether a model runs. A layer that cannot be read has gains of 1, no distance factor, and a reason;
only a method that reads this very layer is refused (`covist.contract.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from covist.backends import takes_no_mask
from covist.contract.decoder import Decoder, Rotary
from covist.contract.text_config import geometry_of, query_heads
from covist.engine.attention.interface import backend_of
from covist.engine.attention_reader import AttentionReader
from covist.engine.capture import execution_device
from covist.engine.projections import weights_stamp
from covist.engine.rotation import Rotation, rotary_axes
from covist.engine.trial import Trial
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable, head_gains
from covist.formulas.wide_heads import COLUMNS

BACKENDS = ("eager", "sdpa", "flex_attention")
WIDEST_HEAD = 256  # of flash attention


class FrozenDecoder(Decoder):
    """A decoder-only text model, accessed through its modules so that wrapped and sharded projections keep working."""

    def __init__(self, module: Any):
        if not hasattr(module, "layers"):
            raise CovistError(
                f"{type(module).__name__} is not a decoder-only text model with `layers`; only such text models can be "
                "compressed"
            )
        self.module = module
        self.layers = len(module.layers)
        self.hidden: int = module.config.hidden_size
        self.geometry = geometry_of(module.config, layers=self.layers)
        self._axes = rotary_axes(module)
        self.refresh()

    def refresh(self) -> None:
        """Read the model again, after its weights may have changed."""
        stamp = weights_stamp(self.module.layers)
        with torch.no_grad(), torch.autocast(execution_device(self.module).type, enabled=False):
            reading = Trial(self.module, self._axes).run()
        rotation = Rotation.read(reading.sources, reading.widths, self._axes)
        # Other threads see the old state or the new one, never a mixture.
        self._state = (reading, rotation)
        self._stamp = stamp
        self.heads = reading.heads
        self.head_width = max(reading.widths) or self.hidden // (query_heads(self.module.config, 0) or 1)

    def weights_changed(self) -> bool:
        """Whether the weights behind the gains have changed since the last `refresh` (see `weights_stamp`)."""
        return weights_stamp(self.module.layers) != self._stamp

    def rotation_changed(self) -> bool:
        """Whether the rotary frequencies have changed since the last look; distances and gains then follow them.

        Dynamic RoPE replaces its frequencies while a decoder runs, before the first layer. Unless a buffer was replaced
        or written to, nothing is read from a device.
        """
        reading, known = self._state
        if known.is_current(reading.sources):
            return False
        rotation = Rotation.read(reading.sources, reading.widths, self._axes, known)
        self._state = (reading, rotation)
        return rotation.distances != known.distances

    def check_backend(self) -> str:
        """The attention backend in use; refused if it supports neither a bias nor wide heads."""
        backend = backend_of(self.module)
        wide = takes_no_mask(backend)
        if wide and self.head_width + COLUMNS <= WIDEST_HEAD or backend in BACKENDS:
            return backend
        reason = f"has no room for a bias in heads of {self.head_width}" if wide else "is not known to support a bias"
        raise CovistError(
            f"attention implementation {backend!r} {reason}; use one of {', '.join(BACKENDS)}: "
            "model.set_attn_implementation({'text_config': 'sdpa'})"
        )

    # -- what can be read ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return type(self.module).__name__

    def reads(self, layer: int) -> bool:
        """Whether queries, keys and values of a layer can be read as the layer computes them."""
        return self._state[0].layers[layer].unread is None

    @property
    def unread(self) -> Mapping[int, str]:
        """The layers that cannot be read, or whose gains cannot, and why."""
        reading = self._state[0]
        return {index: layer.unread for index, layer in enumerate(reading.layers) if layer.unread is not None} | {
            index: reason for index, reason in reading.without_gains.items() if reading.layers[index].unread is None
        }

    # -- shapes --------------------------------------------------------------------------------------------------------

    def kv_numbers(self, layer: int) -> int:
        """How many numbers the cache of a layer holds per token; 0 for layers without keys."""
        measured = self._state[0].layers[layer].cached
        return self.geometry.pattern[layer].cached or 0 if measured is None else measured

    def flops(self, lengths: Sequence[float]) -> float:
        """FLOPs of a prefill, Eq. 19, given the sequence length of each layer."""
        return self.geometry.flops(lengths)

    def kv_bytes(self, lengths: Iterable[float]) -> float:
        """Bytes of the key/value cache, given the tokens that each layer leaves for decoding; a window holds fewer."""
        element, layers = self.module.dtype.itemsize, self.geometry.pattern
        return float(sum(layers[index].kept(n) * self.kv_numbers(index) * element for index, n in enumerate(lengths)))

    # -- positions -----------------------------------------------------------------------------------------------------

    def frequencies(self, layer: int) -> Tensor | None:
        """RoPE frequencies of a layer after the model's scaling [head width / 2]; 0 for pairs that do not rotate."""
        return self._state[1].frequencies[layer]

    @property
    def distances(self) -> tuple[DistanceTable | None, ...]:
        """log(2 - D) of Eq. 9 for each layer; None where D is 1."""
        return self._state[1].distances

    def per_axis(self, positions: Tensor) -> Tensor:
        """Positions as the model receives them -> [batch, tokens], or [batch, tokens, axes] for multidimensional RoPE.

        A multidimensional model may receive [axes, batch, tokens], with text positions as a further axis in front, or
        one component for all axes.
        """
        if self._axes is None:
            return positions
        count = self._axes.count
        return positions.reshape(-1, *positions.shape[-2:])[-count:].expand(count, -1, -1).permute(1, 2, 0)

    def rotary(self, hidden: Tensor, positions: Tensor, layer: int | None = None) -> Rotary:
        """cos and sin [batch, tokens, rotary width] for positions [batch, tokens] or [batch, tokens, axes].

        layer: whose angles; by default those of the first layer that rotates
        """
        positions = positions.to(hidden.device)
        sources = self._state[0].sources
        source = next(filter(None, sources), None) if layer is None else sources[layer]
        angles = None
        if source is not None:
            angles = source.angles(hidden, positions if positions.ndim == 2 else positions.permute(2, 0, 1))
        if angles is None:  # a layer that does not rotate
            shape = (*positions.shape[:2], self.head_width)
            return hidden.new_ones(shape), hidden.new_zeros(shape)
        return angles

    # -- what layers read ----------------------------------------------------------------------------------------------

    def first_input(self, embeddings: Tensor) -> Tensor:
        """Embeddings as the first layer receives them; some decoders scale them on the way."""
        scale = self._state[0].entry_scale
        return embeddings if scale == 1 else embeddings * scale

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Hidden states [tokens, d] after the decoder's final norm."""
        norms = (getattr(self.module, name, None) for name in ("norm", "final_layernorm", "final_layer_norm", "norm_f"))
        norm = next(filter(None, norms), None)
        if norm is None:
            raise CovistError(f"{self.name} has no final norm (`norm` or `final_layernorm`)")
        return norm(hidden)

    def queries(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[heads, tokens, head width] in float32, rotated if `rotary` is given."""
        return self._reader(layer).queries(hidden, rotary)

    def keys(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[kv heads, tokens, head width] in float32, rotated if `rotary` is given."""
        return self._reader(layer).keys(hidden, rotary)

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        """[kv heads, tokens, value width] in float32."""
        return self._reader(layer).values(hidden)

    def rotate(self, layer: int, states: Tensor, rotary: Rotary) -> Tensor:
        """States [..., tokens, head width] as a layer rotates its queries and keys."""
        return self._reader(layer).recipe.rotate(states, rotary)

    def scale(self, layer: int) -> float:
        """The factor of a layer's attention logits."""
        return self._reader(layer).recipe.scale

    def _reader(self, layer: int) -> AttentionReader:
        found = self._state[0].layers[layer]
        if found.reader is None:
            raise CovistError(f"layer {layer} of {self.name} cannot be read: {found.unread}")
        return found.reader

    # -- head gains ----------------------------------------------------------------------------------------------------

    def head_gains(self, gain_range: tuple[float, float]) -> Tensor:
        """Closed-form gains of Eq. 10, [layers, heads]; 1 where they cannot be read."""
        reading, rotation = self._state
        frequencies = [None if one is None else one.cpu() for one in rotation.frequencies]
        energies = [
            energy if theta is not None else None for energy, theta in zip(reading.energies, frequencies, strict=True)
        ]
        heads = {len(energy) for energy in energies if energy is not None}
        if heads != {self.heads}:
            return torch.ones(self.layers, self.heads, dtype=torch.float32)
        return head_gains(energies, frequencies, gain_range)
