"""Weights of frozen projections, read through any wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

ADAPTER_STATE = ("active_adapters", "merged_adapters", "disable_adapters", "scaling")
"""Attributes of a PEFT layer that determine how adapters take part."""


@torch.no_grad()
def row_norms(
    projection: nn.Module, width: int, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Euclidean norm of each row of a linear projection's weight, [out], on the CPU.

    A plain linear layer is read directly, offloaded or not. Any other (quantised, LoRA-wrapped) is probed by passing an
    identity matrix through it and subtracting its response to zero, which removes a bias. A projection that has no
    parameter to tell its input by is probed in the `dtype` and on the `device` in which its layer computes.
    """
    with _weight_at_hand(projection):
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


def _weight_at_hand(projection: nn.Module) -> AbstractContextManager[None]:
    """Loads the weight of a projection that accelerate offloads.

    Probing it instead would sum in another order, and in half precision the last digit of a gain shows in the logits.
    """
    if not hasattr(projection, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device  # installed, because it attached the hook

    return align_module_device(projection)


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


def weights_stamp(modules: Iterable[nn.Module]) -> tuple:
    """A value that changes with the weights of modules. It is cheap, because nothing is read from a device.

    It detects replaced modules and tensors, in-place updates that torch counts (optimisers, `load_state_dict`), and
    adapters that were switched, merged or disabled. It does not detect writes through `.data`.
    """
    facts: list[Any] = []
    for part in (part for module in modules for part in module.modules()):
        facts.append(id(part))
        for tensor in (*part._parameters.values(), *part._buffers.values()):  # quantised weights may be buffers
            if tensor is not None and not tensor.is_meta:  # offloaded weights come and go
                facts += id(tensor), 0 if tensor.is_inference() else tensor._version
        if type(part) is not nn.Linear:  # looking up a missing attribute of a module is slow
            facts += [repr(getattr(part, name)) for name in ADAPTER_STATE if hasattr(part, name)]
    return tuple(facts)
