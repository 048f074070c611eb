"""How weights are read: `Loading` as arguments of transformers, and what must be installed for it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from covist.errors import CovistError
from covist.loading import QUANTIZATIONS, Loading

_HALVES = "bnb-8bit"
"""Multiplies float16 only: it would cast anything else, and warn, in every layer."""


def require_packages(loading: Loading) -> None:
    """Refuse, before anything is read, what needs a package that is not installed."""
    needs = {
        "device_map": ("accelerate",),
        "quantization": (QUANTIZATIONS.get(loading.quantization or "", ""), "accelerate"),
        "adapter": ("peft",),
    }
    for name, packages in needs.items():
        missing = [] if getattr(loading, name) is None else [one for one in packages if find_spec(one) is None]
        if missing:
            given = f"{name.replace('_', '-')} {getattr(loading, name)}"
            raise CovistError(f"{given} needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def hub_options(loading: Loading) -> dict[str, Any]:
    """Which version of a checkpoint is read, and whether its code may run."""
    revision = {} if loading.revision is None else {"revision": loading.revision}
    return {**revision, "trust_remote_code": loading.trust_remote_code}


def weight_options(loading: Loading, place: torch.device) -> dict[str, Any]:
    """Arguments of `from_pretrained` for precision, attention and places.

    A quantised model cannot be moved later, so it gets its place while it is read.
    """
    options: dict[str, Any] = {"dtype": _dtype(loading, place), "attn_implementation": loading.attention}
    if loading.device_map is not None:
        options["device_map"] = loading.placement
    elif loading.quantization is not None:
        options["device_map"] = {"": str(place)}
    if loading.quantization is not None:
        options["quantization_config"] = _quantization(loading.quantization)
    return options


def _dtype(loading: Loading, place: torch.device) -> Any:
    if loading.dtype not in (None, "auto"):
        return getattr(torch, str(loading.dtype))
    if loading.quantization == _HALVES:
        return torch.float16
    return torch.float32 if place.type == "cpu" else "auto"


def _quantization(name: str) -> Any:
    from transformers import BitsAndBytesConfig, TorchAoConfig

    if QUANTIZATIONS[name] == "bitsandbytes":
        return BitsAndBytesConfig(load_in_8bit=name == _HALVES, load_in_4bit=name != _HALVES)
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def find_device(name: str) -> torch.device:
    """A device that is available; "auto" prefers a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise CovistError(f"device {name!r} is not available: {first_line(error)}") from None
    return place


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
