"""Access to a frozen decoder: projections of chosen tokens, rotary embeddings, and the closed-form head gains."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from covist.contract.decoder import Decoder, Rotary
from covist.engine.attention_reader import AttentionReader, Recipe, learn_recipe
from covist.engine.capture import PROJECTIONS, Capture, LayerInput, capturing, execution_device
from covist.engine.interface import backend_of, takes_no_mask
from covist.engine.projections import weights_stamp
from covist.errors import CovistError
from covist.formulas.attention import DistanceTable, head_gains
from covist.formulas.wide_heads import COLUMNS
from covist.schedule import decoder_flops

BACKENDS = ("eager", "sdpa", "flex_attention")
TRIAL_TOKENS = 5
WIDEST_HEAD = 256  # of flash attention


class FrozenDecoder(Decoder):
    """A decoder-only text model, accessed through its modules so that wrapped and sharded projections keep working."""

    def __init__(self, module: Any, rotary_axes: Sequence[int] | None = None):
        _require_plain_attention(module)
        self.module = module
        self.layers = len(module.layers)
        self.hidden: int = module.config.hidden_size
        self.intermediate: int = _mlp_width(module.config)
        self._axes = rotary_axes
        self.refresh()

    def refresh(self) -> None:
        """Read the model again, after its weights may have changed."""
        for name in ("projection_energies", "distance_table"):
            vars(self).pop(name, None)
        self._stamp = self._weights_stamp()
        with torch.no_grad(), torch.autocast(execution_device(self.module).type, enabled=False):
            recipes = self._learn_recipes()
        self._readers = [
            AttentionReader(layer, recipe) for layer, recipe in zip(self.module.layers, recipes, strict=True)
        ]
        first = recipes[0]
        self.heads, self.kv_heads, self.head_width = first.heads, first.kv_heads, first.head_width

    def weights_changed(self) -> bool:
        """Whether the weights behind the gains have changed since the last `refresh` (see `weights_stamp`)."""
        return self._weights_stamp() != self._stamp

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

    # -- positions -----------------------------------------------------------------------------------------------------

    @property
    def inverse_frequencies(self) -> Tensor:
        """The host model's RoPE frequencies after its scaling [head width / 2]; 0 for pairs that do not rotate."""
        turning = self.module.rotary_emb.inv_freq.float()
        return torch.cat([turning, turning.new_zeros(self.head_width // 2 - len(turning))])

    @property
    def rotary_axes(self) -> Sequence[int] | None:
        """The axis of each frequency for multidimensional RoPE; otherwise None."""
        if self._axes is None:
            return None
        return [*self._axes, *[0] * (self.head_width // 2 - len(self._axes))]  # any axis: those pairs do not rotate

    @cached_property
    def distance_table(self) -> DistanceTable:
        return DistanceTable(self.inverse_frequencies, self.rotary_axes)

    def per_axis(self, positions: Tensor) -> Tensor:
        """Positions as the model receives them -> [batch, tokens], or [batch, tokens, axes] for multidimensional RoPE.

        A multidimensional model may receive [axes, batch, tokens], with text positions as a further axis in front, or
        one component for all axes.
        """
        if self._axes is None:
            return positions
        axes = max(self._axes) + 1
        return positions.reshape(-1, *positions.shape[-2:])[-axes:].expand(axes, -1, -1).permute(1, 2, 0)

    def rotary(self, hidden: Tensor, positions: Tensor) -> Rotary:
        """cos and sin [batch, tokens, rotary width] for positions [batch, tokens] or [batch, tokens, axes]."""
        positions = positions.to(hidden.device)
        return self.module.rotary_emb(hidden, positions if positions.ndim == 2 else positions.permute(2, 0, 1))

    @property
    def layers_without_positions(self) -> frozenset[int]:
        """Layers whose attention does not rotate: there D of Eq. 9 is 1."""
        return frozenset(index for index, reader in enumerate(self._readers) if not reader.rotates)

    # -- what layers read ----------------------------------------------------------------------------------------------

    def first_input(self, embeddings: Tensor) -> Tensor:
        """Embeddings as the first layer receives them; some decoders scale them on the way."""
        return embeddings if self._entry_scale == 1 else embeddings * self._entry_scale

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Hidden states [tokens, d] after the decoder's final norm."""
        norm = getattr(self.module, "norm", None) or getattr(self.module, "final_layernorm", None)
        if norm is None:
            raise CovistError(f"{type(self.module).__name__} has no final norm (`norm` or `final_layernorm`)")
        return norm(hidden)

    def queries(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[heads, tokens, head width] in float32, rotated if `rotary` is given."""
        return self._readers[layer].queries(hidden, rotary)

    def keys(self, layer: int, hidden: Tensor, rotary: Rotary | None = None) -> Tensor:
        """[kv heads, tokens, head width] in float32, rotated if `rotary` is given."""
        return self._readers[layer].keys(hidden, rotary)

    def values(self, layer: int, hidden: Tensor) -> Tensor:
        """[kv heads, tokens, value width] in float32."""
        return self._readers[layer].values(hidden)

    def rotate(self, layer: int, states: Tensor, rotary: Rotary) -> Tensor:
        """States [..., tokens, head width] as a layer rotates its queries and keys."""
        return self._readers[layer].recipe.rotate(states, rotary)

    def scale(self, layer: int) -> float:
        """The factor of a layer's attention logits."""
        return self._readers[layer].recipe.scale

    # -- head gains ----------------------------------------------------------------------------------------------------

    @cached_property
    def projection_energies(self) -> list[Tensor | None]:
        """E of Eq. 10 for every layer, [heads, head width / 2] each; None for layers without rotary."""
        return [reader.energy(self.hidden) for reader in self._readers]

    def head_gains(self, gain_range: tuple[float, float]) -> Tensor:
        """Closed-form gains of Eq. 10 over all layers and heads, [layers, heads]."""
        return head_gains(self.projection_energies, self.inverse_frequencies.cpu(), gain_range)

    # -- the trial run -------------------------------------------------------------------------------------------------

    def _weights_stamp(self) -> tuple:
        attentions = [layer.self_attn for layer in self.module.layers]
        return weights_stamp(getattr(attention, name) for attention in attentions for name in PROJECTIONS[:2])

    def _learn_recipes(self) -> list[Recipe]:
        """The recipe of every layer, learned from one layer of each kind."""
        learned: dict[Hashable, Recipe] = {}
        with capturing(self.module) as capture:
            given = self._enter(capture)
            for index, layer in enumerate(self.module.layers):
                kind = _kind(layer)
                if kind not in learned:
                    rotary = (given.rotary[0][0], given.rotary[1][0])
                    learned[kind] = learn_recipe(layer, given.hidden[0], rotary, capture.attend(index, given))
        shapes = {(recipe.heads, recipe.kv_heads, recipe.head_width) for recipe in learned.values()}
        if len(shapes) > 1:
            raise CovistError(
                f"the layers of {type(self.module).__name__} differ in number or width of heads, which is not supported"
            )
        return [learned[_kind(layer)] for layer in self.module.layers]

    def _enter(self, capture: Capture) -> LayerInput:
        """The first layer's input for random tokens."""
        name, weight = type(self.module).__name__, self.module.get_input_embeddings().weight
        device = execution_device(self.module)
        embeddings = torch.randn(TRIAL_TOKENS, self.hidden, generator=torch.Generator().manual_seed(0))
        embeddings = embeddings.to(device, weight.dtype)
        positions = torch.arange(3, 3 + TRIAL_TOKENS, device=device)[None]  # [1, tokens]
        axes = self._axes and max(self._axes) + 1
        given = capture.enter(embeddings, positions.expand(axes, -1, -1) if axes else positions)
        ours = self.rotary(given.hidden, positions[..., None].expand(-1, -1, axes) if axes else positions)
        theirs = given.rotary
        if not isinstance(theirs, tuple) or not all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True)):
            raise CovistError(
                f"{name} does not pass the angles of its rotary_emb to its layers; use another text model"
            )
        ratio = given.hidden[0].float() / embeddings.float()
        self._entry_scale = float(ratio.median())
        if not torch.allclose(ratio, ratio.median(), rtol=0.02):
            raise CovistError(f"{name} changes its input before the first layer; use another text model")
        return given


def _require_plain_attention(module: Any) -> None:
    """Refuse decoders whose layers cannot be read or whose caches cannot be shortened."""
    name = type(module).__name__
    if not hasattr(module, "layers") or not hasattr(getattr(module, "rotary_emb", None), "inv_freq"):
        raise CovistError(
            f"{name} is not a decoder-only text model with rotary positions (`layers` and `rotary_emb.inv_freq`); "
            "only such text models can be compressed"
        )
    for index, layer in enumerate(module.layers):
        if not hasattr(layer, "self_attn"):
            raise CovistError(
                f"layer {index} of {name} has no self_attn; linear attention and fused projections are not supported"
            )
        missing = [projection for projection in PROJECTIONS if not hasattr(layer.self_attn, projection)]
        if missing:
            attention = type(layer.self_attn).__name__
            raise CovistError(f"{attention} has no {', '.join(missing)}: fused projections are not supported")
    caches = {type(layer).__name__ for layer in DynamicCache(config=module.config).layers} - {DynamicLayer.__name__}
    if caches:
        raise CovistError(
            f"{name} keeps its keys in {', '.join(sorted(caches))}, which cannot hold a compressed prompt; "
            "to switch off a sliding window, load the model with text_config.sliding_window=None"
        )


def plain_flops(module: Any, length: int) -> float:
    """Eq. 19 for an uncompressed prefill of `length` tokens; this works for decoders that covist cannot read, too."""
    config = module.config
    return decoder_flops([length] * len(module.layers), config.hidden_size, _mlp_width(config))


def _mlp_width(config: Any) -> int:
    """Width of the MLP that a token passes through; in a mixture, of its active experts and the shared one together."""
    dense, experts = getattr(config, "intermediate_size", None), getattr(config, "num_experts_per_tok", None)
    own = (experts and getattr(config, "moe_intermediate_size", None)) or dense
    if own is None:
        raise CovistError(f"{type(config).__name__} has no intermediate_size, so FLOPs cannot be counted")
    shared = (experts and getattr(config, "shared_expert_intermediate_size", None)) or 0
    return (experts or 1) * own + shared


def _kind(layer: Any) -> Hashable:
    """A key that is equal for layers whose attention modules differ only in their weights and their number."""
    attention = layer.self_attn
    settings = {name: value for name, value in vars(attention).items() if isinstance(value, (bool, int, float, str))}
    settings.pop("layer_idx", None)
    present = [name for name, child in attention.named_children() if child is not None]
    return type(layer), type(attention), tuple(sorted(settings.items())), tuple(present)
