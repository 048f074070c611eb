"""covist's attention function, registered with transformers beside the model's own, which it calls.

It is needed where a mask is not enough: for kernels without a bias argument (`wide_attention`) and for masks too large
to exist at once (`mask`). If a layer receives a carrier as keyword argument `CARRIER`, the carrier computes its
attention. Otherwise the call goes unchanged to the model's own function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PREFIX = "covist:"
CARRIER = "covist_carrier"

Attended = tuple[Tensor, Any]  # [batch, queries, heads, width], and attention weights if the function has them
Carrier = Callable[..., Attended]


def backend_of(module: Any) -> str:
    """The attention implementation that the user chose for a decoder, whether or not covist's function wraps it."""
    return str(module.config._attn_implementation).removeprefix(PREFIX)


def takes_no_mask(backend: str) -> bool:
    """Whether a kernel supports only causality and padding, like flash attention and its relatives."""
    return backend in ALL_ATTENTION_FUNCTIONS and ALL_MASK_ATTENTION_FUNCTIONS.get(backend) is flash_attention_mask


class AttentionSwitch:
    """Routes the attention of a decoder through covist's function until `remove()`."""

    def __init__(self, module: Any):
        configs = [module.config, *(layer.self_attn.config for layer in module.layers)]
        self._configs = list({id(config): config for config in configs}.values())  # usually one object

    def turn_on(self) -> None:
        for config in self._configs:
            if not config._attn_implementation.startswith(PREFIX):
                _choose(config, _register(config._attn_implementation))

    def remove(self) -> None:
        for config in self._configs:
            _choose(config, config._attn_implementation.removeprefix(PREFIX))


def _choose(config: Any, name: str) -> None:
    config._attn_implementation = {"": name}  # this config only: a plain name would change its parts, too


def _register(backend: str) -> str:
    """Register covist's function around `backend` under its own name, with the masks that `backend` takes."""
    name = PREFIX + backend
    AttentionInterface.register(name, partial(_attend, backend))
    if backend in ALL_MASK_ATTENTION_FUNCTIONS:
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[backend])
    return name


def _attend(
    backend: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> Attended:
    carrier: Carrier | None = options.pop(CARRIER, None)
    # Flash attention picks its kernel by the name in the config, which is covist's now.
    named = _With(module, config=_With(module.config, _attn_implementation=backend))
    own = partial(ALL_ATTENTION_FUNCTIONS[backend], named)
    return own(query, key, value, mask, **options) if carrier is None else carrier(own, query, key, value, **options)


class _With:
    """An object with some attributes replaced, for a function that reads them."""

    def __init__(self, original: Any, **attributes: Any):
        self.__dict__.update(attributes, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
