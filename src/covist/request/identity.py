"""What answers depend on besides method and budget: the weights, their dtype, and the attention backend."""

from __future__ import annotations

import zlib
from typing import Any

from torch import Tensor, nn

from covist.engine.projections import weights_at_hand
from covist.request.loading import LoadedModel

_PROBED_VALUES = 4096  # values of each parameter that a fingerprint reads


def identity(loaded: LoadedModel) -> dict[str, str]:
    """Values, by name, that are equal for two models that give the same answers."""
    clip = loaded.clip
    return {
        "model": fingerprint(loaded.model),
        "clip": fingerprint(clip[0]) if isinstance(clip, tuple) else str(clip or "none"),
        "dtype": loaded.dtype,
        "attention": loaded.attention,
    }


def fingerprint(module: nn.Module) -> str:
    """A checksum of the weights."""
    checksum = 0
    for name, values in module.state_dict().items():
        checksum = zlib.crc32(name.encode() + _probe(module, name, values).tobytes(), checksum)
    return f"{type(module).__name__}-{checksum:08x}"


def _probe(module: nn.Module, name: str, values: Tensor) -> Any:
    """The first values of a tensor of the state; what is offloaded is loaded, what is quantised is as it is used."""
    if values.is_meta:
        place, _, own = name.rpartition(".")
        owner = module.get_submodule(place)
        with weights_at_hand(owner):
            return _first_values(getattr(owner, own))
    return _first_values(values)


def _first_values(values: Tensor) -> Any:
    is_subclass = type(values) not in (Tensor, nn.Parameter)  # such as torchao's
    if is_subclass and hasattr(values, "dequantize"):
        values = values.dequantize()
    return values.detach().flatten()[:_PROBED_VALUES].float().cpu().numpy()
