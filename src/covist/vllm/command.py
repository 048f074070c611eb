"""The command that serves a checkpoint in vLLM with compression, as `covist vllm-args` prints it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from covist.api.origin import check_origin
from covist.api.setup import DEFAULT_METHOD, VERSION_KEY, Setup
from covist.budget import Budget
from covist.config import CovistConfig
from covist.contract.family import Family
from covist.errors import CovistError
from covist.request.checkpoints import EMBEDDED, served
from covist.request.concentration import MEASURED
from covist.vllm.limits import UNFIT, require_fit
from covist.vllm.settings import BY_EMBEDDINGS, PREFIX, Serving, require_readable
from covist.vllm.towers import reader_for

MODELS: dict[str, list[str]] = json.loads(files("covist.vllm").joinpath("models.json").read_text(encoding="utf-8"))
"""vLLM's model classes that can be compressed, and what they take; `tools/vllm_models.py` writes the file."""
BACKEND = "TransformersMultiModalForCausalLM"
"""The class by which vLLM runs models of transformers that it has no class for."""


@dataclass(frozen=True)
class ServeCommand:
    """`vllm serve` for one checkpoint.

    overrides: the value of --hf-overrides
    needs_reference: whether the method lacks a concentration reference
    """

    model: str
    overrides: dict[str, Any]
    needs_reference: bool

    def line(self) -> str:
        """The command for a shell."""
        return shlex.join(["vllm", "serve", self.model, "--hf-overrides", json.dumps(self.overrides)])

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "hf_overrides": self.overrides, "command": self.line()}


def serve_command(
    model: str,
    setup: Setup,
    *,
    instruction: bool = False,
    clip: str | None = None,
    columns: int | None = None,
) -> ServeCommand:
    """The command for a model and a setup; what vLLM would refuse at its start is refused here."""
    found = _checkpoint(model)
    setup = setup.over(Setup(budget=found.budget))
    own = {"instruction": instruction or None, "clip": clip, "columns": columns}
    if setup.method is None:
        setup = replace(setup, method=DEFAULT_METHOD if found.tower_is_read else BY_EMBEDDINGS)
    settings = _given({**_values(setup), **own})
    serving = Serving.read(settings)
    if found.config is not None:
        check_origin(setup, found.config, serving.method)
    require_readable(serving, found.architecture, found.tower_is_read)
    tracker = serving.method.tracker
    if tracker is None:
        settings.pop("concentration", None)
    elif setup.concentration is None and model in MEASURED:
        settings["concentration"] = MEASURED[model]
    overrides = {"architectures": [f"{PREFIX}{found.architecture}"], "covist": settings}
    needs_reference = tracker is not None and "concentration" not in settings
    return ServeCommand(str(EMBEDDED.get(model, model)), overrides, needs_reference)


@dataclass(frozen=True)
class _Checkpoint:
    """What vLLM makes of a checkpoint.

    architecture: vLLM's model class
    tower_is_read: whether covist reads its vision tower
    config: None if transformers does not know the checkpoint
    """

    architecture: str
    tower_is_read: bool
    budget: Budget
    config: Any


def _checkpoint(model: str) -> _Checkpoint:
    try:
        name, family, config = served(model)
        budget = family.default_budget
    except CovistError:
        if (own := _own_class(model)) is None:
            raise
        name, budget, config = own, Family.default_budget, None
    require_fit(name)
    if name not in MODELS:
        return _Checkpoint(BACKEND, False, budget, config)
    return _Checkpoint(name, reader_for(config, name) is not None, budget, config)


def _own_class(model: str) -> str | None:
    """The class of a checkpoint that transformers does not know, or only with code that it brings, but vLLM does."""
    try:
        listed = json.loads((Path(model) / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return None
    return next((name for name in listed if name in MODELS or name in UNFIT), None)


def _values(setup: Setup) -> dict[str, Any]:
    """The values of a setup for a server: of the constants only those that differ from the paper's."""
    values = {name: value for name, value in setup.to_dict().items() if name not in (VERSION_KEY, "origin", "loading")}
    if setup.constants is not None:
        usual, own = CovistConfig().to_dict(), values["constants"]
        values["constants"] = {name: own[name] for name in own if own[name] != usual[name]} or None
    return values


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
