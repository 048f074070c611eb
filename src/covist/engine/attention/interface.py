"""covist's attention and mask functions, registered with transformers beside the model's, which they call.

While a call is compressed, the mask function returns a rule instead of a mask, and the pass of the call computes every
attention. In any other call both functions hand everything on unchanged.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from covist.backends import Attended, Renamed, attention_of, register
from covist.engine.attention.rule import MaskRule
from covist.engine.attention.sparse import of_chosen_keys
from covist.engine.running import current

PREFIX = "covist:"


def backend_of(module: Any) -> str:
    """The attention implementation that the user chose for a decoder, whether or not covist's function wraps it."""
    return str(module.config._attn_implementation).removeprefix(PREFIX)


class AttentionSwitch(Renamed):
    """Routes masks and attention of a decoder through covist's functions until `remove()`."""

    def __init__(self, *modules: nn.Module):
        parts = (part for module in modules for part in module.modules())
        super().__init__((part.config for part in parts if hasattr(part, "config")), PREFIX, _register)


def _register(backend: str) -> None:
    """Register covist's functions around `backend` under their own name."""
    mask = partial(_mask, backend) if backend in ALL_MASK_ATTENTION_FUNCTIONS else None
    register(PREFIX + backend, partial(_attend, backend), mask)


def _mask(backend: str, **arguments: Any) -> Any:
    if current() is None:
        return ALL_MASK_ATTENTION_FUNCTIONS[backend](**arguments)
    given = arguments.get("attention_mask")  # a model may build masks, hand them on and build them again
    return given if isinstance(given, MaskRule) else MaskRule(arguments["mask_function"])


def _attend(
    backend: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> Attended:
    one = current()
    if one is None or not one.inside:
        return attention_of(module, backend)(query, key, value, mask, **options)
    if not isinstance(mask, MaskRule):
        mask = MaskRule.of_mask(of_chosen_keys(mask, module, query, key, options))
    return one.attend(AttentionCall(module, backend, query, key, value, mask, options))


class AttentionCall(NamedTuple):
    """One call of the attention function by a layer, with the model's mask as a rule."""

    module: nn.Module
    backend: str
    query: Tensor  # [batch, heads, queries, width]
    key: Tensor  # [batch, kv heads, keys, width]
    value: Tensor
    rule: MaskRule
    options: dict[str, Any]

    @property
    def layer(self) -> int:
        layer: Any = self.module.layer_idx
        return layer

    def under(self, mask: Tensor | None, backend: str | None = None) -> Attended:
        """The model's attention under a mask [batch, heads or 1, queries, keys], in the form that the backend takes."""
        backend, options = backend or self.backend, self.options
        if backend == "flex_attention" and mask is not None:
            # It does not broadcast the heads of a bias, and crashes on float masks on the CPU.
            own = options.get("position_bias")
            bias = mask.expand(-1, self.query.shape[1], -1, -1)
            options = {**options, "position_bias": bias if own is None else bias + own}
            mask = None
        return attention_of(self.module, backend)(self.query, self.key, self.value, mask, **options)
