"""transformers' attention functions by the name of a backend, around which covist registers functions of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from covist.errors import CovistError

EAGER = "eager_attention_forward"
"""The name under which a file of transformers defines the eager attention of its model."""

Attended = tuple[Tensor, Any]  # [batch, queries, heads, width], and attention weights if the function has them
Attention = Callable[..., Attended]


def takes_no_mask(backend: str) -> bool:
    """Whether a kernel supports only causality and padding, like flash attention and its relatives."""
    return backend in ALL_ATTENTION_FUNCTIONS and ALL_MASK_ATTENTION_FUNCTIONS.get(backend) is flash_attention_mask


def attention_of(module: nn.Module, backend: str) -> Attention:
    """The model's function for a backend. Kernels read their name in a config, which must not be covist's."""
    if takes_no_mask(backend):
        named = _With(module, config=_With(module.config, _attn_implementation=backend))
        return partial(ALL_ATTENTION_FUNCTIONS[backend], named)
    if backend != "eager":
        return partial(ALL_ATTENTION_FUNCTIONS[backend], module)
    files = (sys.modules.get(ancestor.__module__) for ancestor in type(module).__mro__)
    eager = next((getattr(file, EAGER) for file in files if hasattr(file, EAGER)), None)
    if eager is None:
        raise CovistError(f"{type(module).__name__} has no eager attention; load the model with 'sdpa'")
    return partial(eager, module)


def register(name: str, attend: Attention, mask: Callable[..., Any] | None) -> None:
    """Let transformers know functions around a backend by a name; `mask` is None if the backend has none."""
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attend)
    if mask is not None and name not in ALL_MASK_ATTENTION_FUNCTIONS:
        AttentionMaskInterface.register(name, mask)


class Renamed:
    """The attention implementation of configurations, under a name of covist's with the original after a prefix.

    Only these configurations change, not their parts; `remove()` puts the original names back.
    """

    def __init__(self, configs: Any, prefix: str, register: Callable[[str], None]):
        """`register` makes transformers know the name of a backend with the prefix."""
        self._configs = list({id(config): config for config in configs}.values())
        self._unset = [config for config in self._configs if config._attn_implementation is None]
        self._prefix, self._register = prefix, register
        self.turn_on()

    def turn_on(self) -> None:
        """Also after somebody has chosen another implementation."""
        for config in self._configs:
            name = str(config._attn_implementation or "eager")  # as transformers reads it
            if not name.startswith(self._prefix):
                self._register(name)
                _choose(config, self._prefix + name)

    def remove(self) -> None:
        for config in self._configs:
            name = str(config._attn_implementation).removeprefix(self._prefix)
            _choose(config, None if any(config is one for one in self._unset) and name == "eager" else name)


def _choose(config: Any, name: str | None) -> None:
    config._attn_implementation = {"": name}  # this config only: a plain name would change its parts, too


class _With:
    """An object with some attributes replaced, for a function that reads them."""

    def __init__(self, original: Any, **attributes: Any):
        self.__dict__.update(attributes, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
