"""What the attention of a decoder actually receives, found by running single layers on a few tokens.

The model itself is never changed: the tokens pass through shallow copies of its modules ("twins") that share every
weight, and a copy of its configuration names an attention function of covist, which ends the run.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from covist.errors import CovistError

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class LayerInput:
    """What a decoder passes to its first layer."""

    hidden: Tensor  # [1, tokens, d]
    rotary: Any  # cos and sin [1, tokens, rotary width] in a supported decoder
    options: dict[str, Any]


@dataclass(frozen=True)
class Received:
    """The arguments of one layer's attention function, and the projections from which they were made."""

    queries: Tensor  # [heads, tokens, head width]
    keys: Tensor  # [kv heads, tokens, head width]
    values: Tensor  # [kv heads, tokens, value width]
    scale: float
    options: dict[str, Any]
    normed: list[Tensor]  # [tokens, d] each, inputs of the projections
    projected: list[Tensor]  # [tokens, out] each, their outputs


class Capture:
    """Runs tokens through twins of a decoder's modules; use it inside `capturing`."""

    def __init__(self, module: Any, config: Any):
        self._module, self._config = module, config

    @torch.no_grad()
    def enter(self, embeddings: Tensor, positions: Tensor) -> LayerInput:
        """The input of the first layer for embeddings [tokens, d] at positions [..., 1, tokens]."""
        first = _twin(self._module.layers[0])
        first.forward = _stop
        decoder = _twin(self._module, layers=nn.ModuleList([first]))
        decoder.config = self._config
        args, options = _run(decoder, inputs_embeds=embeddings[None], position_ids=positions, use_cache=False)
        hidden = args[0] if args else options.pop("hidden_states")
        return LayerInput(hidden, options.get("position_embeddings"), options)

    @torch.no_grad()
    def attend(self, index: int, given: LayerInput) -> Received:
        """What the attention of layer `index` receives if that layer is given the first layer's input."""
        layer = self._module.layers[index]
        recorders = {name: _Recorder(getattr(layer.self_attn, name)) for name in PROJECTIONS}
        attention = _twin(layer.self_attn, **recorders)
        attention.config = self._config
        device = execution_device(layer)
        args, options = _run(
            _twin(layer, self_attn=attention), given.hidden.to(device), **_moved(given.options, device)
        )
        queries, keys, values = args
        scale = options.pop("scaling", None)
        return Received(
            queries=queries[0],
            keys=keys[0],
            values=values[0],
            scale=queries.shape[-1] ** -0.5 if scale is None else float(scale),
            options=options,
            normed=[recorder.given.flatten(0, -2) for recorder in recorders.values()],
            projected=[recorder.made.flatten(0, -2) for recorder in recorders.values()],
        )


@contextmanager
def capturing(module: Any) -> Iterator[Capture]:
    """Register the attention function that ends a run, and remove it afterwards."""
    name = f"covist-capture-{threading.get_ident()}"
    config = copy.copy(module.config)
    # The public setter would also change sub-configurations, which are shared with the model.
    config._attn_implementation_internal = name
    ALL_ATTENTION_FUNCTIONS[name] = _stop_at_attention
    # Projections may draw random numbers (dropout of adapters in training).
    devices = [execution_device(layer) for layer in module.layers]
    accelerators = {device for device in devices if device.type not in ("cpu", "meta")}
    try:
        with torch.random.fork_rng(list(accelerators), device_type=next((d.type for d in accelerators), "cuda")):
            yield Capture(module, config)
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]


def execution_device(module: nn.Module) -> torch.device:
    """The device on which a module computes; an offloaded module stores its weights elsewhere and has a hook."""
    hooks: Iterator[Any] = (getattr(part, "_hf_hook", None) for part in module.modules())
    device = next((hook.execution_device for hook in hooks if hasattr(hook, "execution_device")), None)
    if device is None:
        device = next((parameter.device for parameter in module.parameters()), "cpu")
    return torch.device(device)


class _Reached(Exception):
    """Raised where a trial run is meant to end."""

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        super().__init__()
        self.given = args, kwargs


def _stop(*args: Any, **kwargs: Any) -> NoReturn:
    raise _Reached(args, kwargs)


def _stop_at_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> NoReturn:
    _stop(query, key, value, **options)


class _Recorder(nn.Module):
    """Calls a projection and records its input and output."""

    def __init__(self, projection: nn.Module):
        super().__init__()
        self.projection = projection
        self.given, self.made = torch.empty(0), torch.empty(0)

    def forward(self, states: Tensor) -> Tensor:
        self.given, self.made = states, self.projection(states)
        return self.made


def _twin(module: nn.Module, **children: nn.Module) -> Any:
    """A shallow copy with the same weights, other `children`, and without the hooks of the original."""
    twin = copy.copy(module)
    state = vars(twin)
    state.pop("forward", None)  # accelerate's wrapper, bound to the original
    state["_modules"] = {**module._modules, **children}
    state["_forward_hooks"], state["_forward_pre_hooks"] = OrderedDict(), OrderedDict()
    return twin


def _run(twin: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]]:
    """Call a twin until it reaches `_stop`, and return the arguments of `_stop`."""
    name = type(twin).__name__
    try:
        type(twin).forward(twin, *args, **kwargs)
    except _Reached as reached:
        return reached.given
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CovistError(f"{name} cannot be read: a trial run failed with {type(error).__name__}: {reason}") from error
    raise CovistError(f"{name} cannot be read: its attention does not go through transformers' attention interface")


def _moved(value: Any, device: torch.device) -> Any:
    """A value with all its tensors, also those in dictionaries and tuples, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    return tuple(_moved(part, device) for part in value) if isinstance(value, tuple) else value
