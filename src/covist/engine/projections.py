"""The projections of frozen attention layers: where they are, and their weights, read through any wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
NORM_NAMES = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
    ("qk_norm", "qk_norm"),
)
ADAPTER_STATE = ("active_adapters", "merged_adapters", "disable_adapters", "scaling")
"""Attributes of a PEFT layer that determine how adapters take part."""


def attention_name(layer: nn.Module) -> str | None:
    """The name of a layer's attention module; None for linear attention, convolutions and the like."""
    children = [(name, child) for name, child in layer.named_children() if child is not None]
    for found in (
        [name for name, _ in children if name == "self_attn"],
        [name for name, child in children if has_projections(child)],
        [name for name, child in children if "Attention" in type(child).__name__],
    ):
        if found:
            return found[0]
    return None


def has_projections(attention: nn.Module) -> bool:
    """Whether queries, keys and values have separate projections."""
    return all(isinstance(getattr(attention, name, None), nn.Module) for name in PROJECTIONS)


def norms_of(attention: Any) -> tuple[Any, Any]:
    """The norms of queries and keys, if the attention module has them."""
    for query, key in NORM_NAMES:
        if getattr(attention, query, None) is not None and getattr(attention, key, None) is not None:
            return getattr(attention, query), getattr(attention, key)
    return None, None


@torch.no_grad()
def row_norms(
    projection: nn.Module, width: int, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Euclidean norm of each row of a linear projection's weight, [out], on the CPU.

    A plain linear layer is read directly, offloaded or not. Any other (quantised, LoRA-wrapped) is probed by passing an
    identity matrix through it and subtracting its response to zero, which removes a bias. A projection that has no
    parameter to tell its input by is probed in the `dtype` and on the `device` in which its layer computes.
    """
    with weights_at_hand(projection):
        weight = projection.weight if type(projection) is nn.Linear else torch.empty(0, dtype=torch.int)
        # Quantised weights may be subclasses of a tensor inside a plain linear layer.
        plain = type(weight) in (nn.Parameter, Tensor) and weight.is_floating_point() and not weight.is_meta
        if plain:
            return torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32).cpu()
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    parameter = next((p for p in projection.parameters() if p.is_floating_point()), None)
    if parameter is not None:
        options["dtype"] = parameter.dtype
        # an offloaded module accepts input from any device
        options["device"] = None if parameter.is_meta else parameter.device
    with _without_dropout(projection):
        offset = projection(torch.zeros(1, width, **options)).float()
        squares = torch.zeros(offset.shape[-1], dtype=torch.float32, device=offset.device)
        for start in range(0, width, 512):  # chunks keep the response small next to the weight itself
            rows = torch.arange(start, min(start + 512, width))
            probe = torch.zeros(len(rows), width, **options)
            probe[torch.arange(len(rows)), rows] = 1
            squares += (projection(probe).float() - offset).square().sum(0)
    return squares.sqrt().cpu()


def weights_at_hand(module: nn.Module) -> AbstractContextManager[None]:
    """Loads the weights of a module that accelerate offloads.

    Probing a projection instead would sum in another order, and in half precision the last digit of a gain shows in the
    logits.
    """
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device  # installed, because it attached the hook

    return align_module_device(module)


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    """Puts a module in evaluation mode, because adapters in training mode drop inputs at random."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def weights_stamp(layers: Iterable[nn.Module]) -> tuple:
    """A value that changes with the query and key projections of decoder layers and the norms after them.

    It is cheap, because nothing is read from a device. It detects replaced modules and tensors, in-place updates that
    torch counts (optimisers, `load_state_dict`), and adapters that were switched, merged or disabled. Writes through
    `.data` are not detected.
    """
    facts: list[Any] = []
    for part in (part for layer in layers for module in _gaining(layer) for part in module.modules()):
        facts.append(id(part))
        for tensor in (*part._parameters.values(), *part._buffers.values()):  # quantised weights may be buffers
            if tensor is not None and not tensor.is_meta:  # offloaded weights come and go
                facts += id(tensor), 0 if tensor.is_inference() else tensor._version
        if type(part) is not nn.Linear:  # looking up a missing attribute of a module is slow
            facts += [repr(getattr(part, name)) for name in ADAPTER_STATE if hasattr(part, name)]
    return tuple(facts)


def _gaining(layer: nn.Module) -> list[nn.Module]:
    """The parts of a layer that its gains (Eq. 10) are read from; none if its projections are not separate."""
    attention = getattr(layer, attention_name(layer) or "", None)
    if attention is None or not has_projections(attention):
        return []
    return [getattr(attention, name) for name in PROJECTIONS[:2]] + [
        norm for norm in norms_of(attention) if norm is not None
    ]
