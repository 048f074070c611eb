"""What the attention of a decoder actually receives, found by running single layers on a few tokens.

The model itself is never changed: the tokens pass through shallow copies of its modules ("twins") that share every
weight, and a copy of its configuration names an attention function of covist, which ends the run.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from covist.contract.decoder import Rotary
from covist.engine.projections import PROJECTIONS, attention_name, has_projections
from covist.errors import CovistError

NAME = "covist-capture"
"""Of the attention function that ends a run."""


@dataclass(frozen=True)
class LayerInput:
    """What a decoder passes to one of its layers."""

    hidden: Tensor  # [1, tokens, d] of the first layer
    args: tuple[Any, ...]  # further positional arguments
    options: dict[str, Any]

    @property
    def rotary(self) -> Rotary | None:
        """cos and sin [tokens, rotary width] that the layer is given, if it is given any."""
        given = cos_and_sin(self.options.get("position_embeddings"))
        if given is None:
            return None
        cos, sin = (part.reshape(-1, *part.shape[-2:])[0] for part in given)
        return cos, sin


@dataclass(frozen=True)
class Received:
    """The arguments of one layer's attention function, and the projections from which they were made."""

    queries: Tensor  # [heads, tokens, head width]
    keys: Tensor  # [kv heads, tokens, head width]
    values: Tensor  # [kv heads, tokens, value width]
    scale: float
    options: dict[str, Any]
    normed: list[Tensor]  # [tokens, d] each, inputs of the projections; empty if they are not separate modules
    projected: list[Tensor]  # [tokens, out] each, their outputs


class Capture:
    """Runs tokens through twins of a decoder's modules; use it inside `capturing`."""

    def __init__(self, module: Any):
        self._module = module

    @torch.no_grad()
    def enter(self, embeddings: Tensor, positions: Tensor) -> tuple[list[LayerInput], Any]:
        """What the layers receive for embeddings [tokens, d] at positions [..., 1, tokens] if they change nothing.

        Also returns the twin of the decoder that ran, whose rotary modules are in the state in which they were used.
        """
        try:
            return self._enter(embeddings, positions, lambda hidden: hidden)
        except CovistError as error:
            try:  # layers may also return which keys they have chosen
                return self._enter(embeddings, positions, lambda hidden: (hidden, None))
            except CovistError:
                raise error from None

    def _enter(
        self, embeddings: Tensor, positions: Tensor, returned: Callable[[Tensor], Any]
    ) -> tuple[list[LayerInput], Any]:
        calls: list[tuple[tuple, dict[str, Any]]] = []

        def record(*args: Any, **options: Any) -> Any:
            calls.append((args, options))
            return returned(args[0] if args else options["hidden_states"])

        layers = [twin(layer) for layer in self._module.layers]
        for layer in layers:
            layer.forward = record
        # Rotary modules replace their frequencies while they run; a twin keeps the model's own as they are.
        rotary = {name: twin(child) for name, child in self._module.named_children() if has_frequencies(child)}
        decoder = twin(self._module, layers=nn.ModuleList(layers), **rotary)
        decoder.config = self._named(self._module.config)
        try:
            type(decoder).forward(decoder, inputs_embeds=embeddings[None], position_ids=positions, use_cache=False)
        except Exception as error:  # after the last layer it does not matter
            if len(calls) < len(layers):
                raise _refusal(decoder, error) from error
        if len(calls) != len(layers):
            raise CovistError(f"{type(decoder).__name__} runs {len(calls)} of its {len(layers)} layers")
        hidden = calls[0][0][0] if calls[0][0] else calls[0][1]["hidden_states"]
        others = [{name: value for name, value in options.items() if name != "hidden_states"} for _, options in calls]
        return [LayerInput(hidden, call[0][1:], options) for call, options in zip(calls, others, strict=True)], decoder

    @torch.no_grad()
    def attend(self, index: int, given: LayerInput, cache: Any = None) -> Received:
        """What the attention of layer `index` receives if that layer is given the first layer's hidden states."""
        layer = self._module.layers[index]
        name = attention_name(layer)
        if name is None:
            raise CovistError(f"{type(layer).__name__} has no attention")
        own = getattr(layer, name)
        recorders = {name: _Recorder(getattr(own, name)) for name in PROJECTIONS} if has_projections(own) else {}
        attention = twin(own, **recorders)
        attention.config = self._named(getattr(own, "config", self._module.config))
        device = execution_device(layer)
        options = _moved(given.options, device)
        if "past_key_values" in options:
            options["past_key_values"] = cache
        args, options = _run(
            twin(layer, **{name: attention}), given.hidden.to(device), *_moved(given.args, device), **options
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

    @staticmethod
    def _named(config: Any) -> Any:
        """A copy of a configuration that names the attention function that ends a run."""
        config = copy.copy(config)
        # The public setter would also change sub-configurations, which are shared with the model.
        config._attn_implementation_internal = NAME
        return config


def has_frequencies(module: nn.Module) -> bool:
    """Whether this is a rotary module."""
    return any(name.endswith("inv_freq") for name in module._buffers)


def cos_and_sin(given: Any) -> Rotary | None:
    """cos and sin [..., tokens, rotary width] from what a rotary module returns; None if its form is unknown."""
    if isinstance(given, Tensor) and given.is_complex():  # a rotation of neighbours, as a product of complex numbers
        return given.real.repeat_interleave(2, dim=-1), given.imag.repeat_interleave(2, dim=-1)
    if not isinstance(given, tuple) or len(given) != 2:
        return None
    return given if all(isinstance(part, Tensor) and part.ndim >= 2 for part in given) else None


@contextmanager
def capturing(module: Any) -> Iterator[Capture]:
    """Trial runs of a decoder, which leave the state of random numbers as it was."""
    # Projections may draw random numbers (dropout of adapters in training).
    devices = [execution_device(layer) for layer in module.layers]
    accelerators = {device for device in devices if device.type not in ("cpu", "meta")}
    with torch.random.fork_rng(list(accelerators), device_type=next((d.type for d in accelerators), "cuda")):
        yield Capture(module)


def execution_device(module: nn.Module) -> torch.device:
    """The device on which a module computes; an offloaded module stores its weights elsewhere and has a hook."""
    hooks: Iterator[Any] = (getattr(part, "_hf_hook", None) for part in module.modules())
    device = next((hook.execution_device for hook in hooks if hasattr(hook, "execution_device")), None)
    if device is None:  # quantised projections may have buffers only
        device = next((tensor.device for tensor in chain(module.parameters(), module.buffers())), "cpu")
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


def twin(module: nn.Module, **children: nn.Module) -> Any:
    """A shallow copy with the same weights, other `children`, and without the hooks of the original."""
    made = copy.copy(module)
    state = vars(made)
    state.pop("forward", None)  # accelerate's wrapper, bound to the original
    state["_modules"] = {**module._modules, **children}
    state["_buffers"] = dict(module._buffers)
    state["_forward_hooks"], state["_forward_pre_hooks"] = OrderedDict(), OrderedDict()
    return made


def _run(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple, dict[str, Any]]:
    """Call a twin until it reaches `_stop`, and return the arguments of `_stop`."""
    name = type(module).__name__
    try:
        type(module).forward(module, *args, **kwargs)
    except _Reached as reached:
        return reached.given
    except Exception as error:
        raise _refusal(module, error) from error
    raise CovistError(f"the attention of {name} does not go through transformers' attention interface")


def _refusal(module: nn.Module, error: Exception) -> CovistError:
    reason = " ".join(str(error).split())
    return CovistError(f"a trial run of {type(module).__name__} failed with {type(error).__name__}: {reason:.160}")


def _moved(value: Any, device: torch.device) -> Any:
    """A value with all its tensors, also those in dictionaries and tuples, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    return tuple(_moved(part, device) for part in value) if isinstance(value, tuple) else value


AttentionInterface.register(NAME, _stop_at_attention)
AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])  # for layers that read their mask
