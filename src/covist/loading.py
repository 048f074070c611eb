"""How a model is loaded: the options of every command that loads one, and `loading` of `covist.json`, as one value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from covist.errors import CovistError
from covist.files import parse_json

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
QUANTIZATIONS = {
    "bnb-8bit": "bitsandbytes",
    "bnb-4bit": "bitsandbytes",
    "torchao-int8": "torchao",
}
"""Ways to quantise while loading -> the package that does it."""
MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Rules by which accelerate spreads a model over devices."""
_TRUST = "trust_remote_code"


def _option(doc: str, default: Any = None, shown: str | bool = False) -> Any:
    return field(default=default, metadata={"doc": doc, "shown": shown})


@dataclass(frozen=True)
class Loading:
    """How a model is loaded. None leaves a setting open.

    device: "auto" (the default: a GPU if there is one), "cpu", "cuda", ...
    dtype: "float32", "bfloat16", "float16" or "float64"; by default the checkpoint's own, and float32 on the CPU
    attention: one of transformers' attention backends: "sdpa", "eager", "flash_attention_2", ...
    device_map: spreads a model over several devices, main memory and disk: "auto", "balanced", "balanced_low_0",
        "sequential", or JSON that names a device for each module: '{"model.vision_tower": 0, ...}'; needs accelerate
    quantization: quantises the weights while they are loaded: "bnb-8bit", "bnb-4bit" (bitsandbytes) or
        "torchao-int8" (torchao). A checkpoint that is quantised already (GPTQ, AWQ, ...) needs none.
    adapter: a folder or hub id of a LoRA or another adapter of PEFT
    revision: of a model on the hub: a branch, tag or commit
    trust_remote_code: run the Python code that comes with the checkpoint; never read from a file

    >>> covist.Loading(dtype="bfloat16").over(covist.Loading(dtype="float16", attention="sdpa")).attention
    'sdpa'
    """

    device: str | None = _option("`auto`, `cpu`, `cuda`, ...", shown="auto")
    dtype: str | None = _option(
        "Precision of the weights: float32, bfloat16, float16.", shown="the checkpoint's own; float32 on the CPU"
    )
    attention: str | None = _option("Attention backend: sdpa, eager, flash_attention_2, ...", shown="the model's own")
    device_map: str | None = _option(
        "Spread the model over devices, main memory and disk (needs accelerate): auto, balanced, sequential, or JSON."
    )
    quantization: str | None = _option(
        f"Quantise while loading: {', '.join(QUANTIZATIONS)}. Quantised checkpoints (GPTQ, AWQ, ...) need no option."
    )
    adapter: str | None = _option("LoRA or other adapter of PEFT: a folder or a Hugging Face id.")
    revision: str | None = _option("Branch, tag or commit of a model on the Hugging Face hub.")
    trust_remote_code: bool = _option("Run the Python code that comes with the checkpoint.", default=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == _TRUST:
                if not isinstance(value, bool):
                    raise CovistError(f"{one.name} must be True or False, got {value!r}")
            elif value is not None and (not isinstance(value, str) or not value.strip()):
                raise CovistError(f"{one.name} must be a text, got {value!r}")
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("quantization", self.quantization, QUANTIZATIONS)
        if self.device_map is not None:
            if self.device not in (None, "auto"):
                raise CovistError("give either device or device_map, not both")
            self.placement  # noqa: B018 - refuses what is neither a rule nor a map

    @property
    def placement(self) -> str | dict[str, Any] | None:
        """The device map as transformers takes it."""
        if self.device_map is None or self.device_map in MAPS:
            return self.device_map
        try:
            found = parse_json(self.device_map)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found or not all(type(place) in (str, int) for place in found.values()):
            raise CovistError(
                f"device_map {self.device_map!r} is neither {', '.join(MAPS)} nor JSON that names a device for each "
                'module, such as {"": "cpu"}'
            )
        return found

    def over(self, base: Loading | None) -> Loading:
        """These settings, with those of `base` for what they leave open. Trust is never taken from `base`."""
        if base is None:
            return self
        given = {name: value for name, value in vars(self).items() if value is not None}
        elsewhere = {"device": None, "device_map": None} if {"device", "device_map"} & given.keys() else {}
        return replace(base, **{**elsewhere, **given})

    def to_dict(self) -> dict[str, Any]:
        """What is given, as a file holds it."""
        given = {name: value for name, value in vars(self).items() if value is not None and name != _TRUST}
        return {**given, "device_map": self.placement} if self.device_map is not None else given

    @classmethod
    def from_dict(cls, values: Any) -> Loading:
        """From the fields of a file."""
        if not isinstance(values, Mapping):
            raise CovistError(f"loading must be an object, got {values!r}")
        if _TRUST in values:
            raise CovistError(
                "loading: trust_remote_code is not read from a file, which may be somebody else's; give "
                "--trust-remote-code yourself"
            )
        if unknown := sorted(set(values) - {one.name for one in fields(cls)}):
            raise CovistError(f"loading: unknown setting {', '.join(map(str, unknown))}")
        place = values.get("device_map")
        return cls(**{**values, "device_map": json.dumps(place)} if isinstance(place, dict) else values)

    @property
    def lasting(self) -> Loading:
        """What answers depend on, on any machine."""
        return replace(self, device=None, device_map=None, trust_remote_code=False)


def _check_choice(name: str, given: str | None, allowed: Any) -> None:
    if given is not None and given not in allowed:
        raise CovistError(f"{name} {given!r} is unknown; choose one of {', '.join(allowed)}")


AS_STORED = Loading()
"""The checkpoint as it is."""
