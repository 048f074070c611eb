"""covist's attention and mask functions, registered with transformers beside the model's, which they call.

While a call is compressed, the mask function returns a rule instead of a mask, and the pass of the call computes every
attention. In any other call both functions hand everything on unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from covist.engine.attention.rule import MaskRule
from covist.engine.running import current
from covist.errors import CovistError

PREFIX = "covist:"
EAGER = "eager_attention_forward"
"""The name under which a file of transformers defines the eager attention of its model."""

Attended = tuple[Tensor, Any]  # [batch, queries, heads, width], and attention weights if the function has them
Attention = Callable[..., Attended]


def backend_of(module: Any) -> str:
    """The attention implementation that the user chose for a decoder, whether or not covist's function wraps it."""
    return str(module.config._attn_implementation).removeprefix(PREFIX)


def takes_no_mask(backend: str) -> bool:
    """Whether a kernel supports only causality and padding, like flash attention and its relatives."""
    return backend in ALL_ATTENTION_FUNCTIONS and ALL_MASK_ATTENTION_FUNCTIONS.get(backend) is flash_attention_mask


class AttentionSwitch:
    """Routes masks and attention of a decoder through covist's functions until `remove()`."""

    def __init__(self, *modules: nn.Module):
        parts = (part for module in modules for part in module.modules())
        configs: list[Any] = [part.config for part in parts if hasattr(part, "config")]
        self._configs = list({id(config): config for config in configs}.values())  # usually one object
        self.turn_on()

    def turn_on(self) -> None:
        """Also after somebody has chosen another implementation."""
        for config in self._configs:
            if not str(config._attn_implementation).startswith(PREFIX):
                _choose(config, _register(str(config._attn_implementation)))

    def remove(self) -> None:
        for config in self._configs:
            _choose(config, str(config._attn_implementation).removeprefix(PREFIX))


def _choose(config: Any, name: str) -> None:
    config._attn_implementation = {"": name}  # this config only: a plain name would change its parts, too


def _register(backend: str) -> str:
    """Register covist's functions around `backend` under their own name."""
    name = PREFIX + backend
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, partial(_attend, backend))
    if backend in ALL_MASK_ATTENTION_FUNCTIONS and name not in ALL_MASK_ATTENTION_FUNCTIONS:
        AttentionMaskInterface.register(name, partial(_mask, backend))
    return name


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
    rule = mask if isinstance(mask, MaskRule) else MaskRule.of_mask(mask)
    call = AttentionCall(module, backend, query, key, value, rule, options)
    return one.attend(call)


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
            options = {**options, "position_bias": mask.expand(-1, self.query.shape[1], -1, -1)}
            mask = None
        return attention_of(self.module, backend)(self.query, self.key, self.value, mask, **options)


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


class _With:
    """An object with some attributes replaced, for a function that reads them."""

    def __init__(self, original: Any, **attributes: Any):
        self.__dict__.update(attributes, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
