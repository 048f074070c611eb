"""The model that settings were tuned on, and what becomes of them on another one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covist.api.setup import DEFAULT_METHOD, Setup
from covist.contract.method import Method
from covist.contract.text_config import field, text_config
from covist.errors import CovistError
from covist.methods.create import takes_calibration

TUNED_ON = "tuned_on"
_SIZES = {"layers": ("num_hidden_layers", "depth", "num_layers"), "hidden_size": ("hidden_size", "embed_dim")}


def tuned_on(name: str, config: Any, concentration: float | None = None) -> dict[str, Any]:
    """The entry of `origin` that says on which model settings were found.

    concentration: the reference that was measured on it, so that one which a user puts in its place is not taken for it
    """
    entry = {"name": Path(name).name if Path(name).is_absolute() else name, **architecture(config)}
    return {TUNED_ON: entry if concentration is None else {**entry, "concentration": concentration}}


def architecture(config: Any) -> dict[str, Any]:
    """What differs between models whose measurements cannot stand for each other: their type and their sizes."""
    parts = {"text": text_config(config), "vision": field(config, "vision_config")}
    sizes = {part: {name: field(own, *names) for name, names in _SIZES.items()} for part, own in parts.items()}
    return {"model_type": config.model_type, **sizes}


def check_origin(setup: Setup, config: Any, method: Method | None = None) -> None:
    """Warn if settings were tuned on another model; refuse measurements of it, which would be wrong here.

    config: the configuration of the model that is compressed
    method: that of the setup, if it is known; it may read no measurement
    """
    refuse_measurements(setup, config, method)
    if there := _other_model(setup.origin, config):
        said = f"these settings were tuned on {there}: how much they keep of {_here(config)} was not measured"
        warnings.warn(said, stacklevel=3)


def refuse_measurements(setup: Setup, config: Any, method: Method | None = None) -> None:
    """Refuse a concentration reference or a calibration that is known to be that of another model."""
    there, entry = _other_model(setup.origin, config), setup.origin.get(TUNED_ON)
    if there is None or not isinstance(entry, Mapping):
        return
    reference = entry.get("concentration")
    if reference is not None and reference == setup.concentration and (method is None or method.tracker is not None):
        raise CovistError(
            f"these settings were tuned on {there}: the concentration reference {reference} is not that of "
            f"{_here(config)}. Measure it (covist concentration --images FOLDER --save FILE), or give --concentration"
        )
    if setup.calibration is not None and takes_calibration(method.name if method else setup.method or DEFAULT_METHOD):
        raise CovistError(
            f"these settings were calibrated on {there}, not on {_here(config)}: run covist calibrate for it"
        )


def _here(config: Any) -> str:
    return f"this model ({config.model_type})"


def _other_model(origin: Mapping[str, Any], config: Any) -> str | None:
    """The model that settings were tuned on, in words, if it is known to be another one."""
    entry = origin.get(TUNED_ON)
    if isinstance(entry, Mapping):
        here = architecture(config)
        if all(entry.get(name) == value for name, value in here.items()):
            return None
        return f"{entry.get('name')} ({entry.get('model_type')})"
    kind = str(origin.get("model", "")).rpartition("-")[0]  # files of covist 0.2 name the class and a checksum
    known = field(config, "architectures")
    return kind if kind and known and kind not in known else None
