"""The command that serves a checkpoint in vLLM with compression, as `covist vllm-args` prints it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from covist.api.setup import VERSION_KEY, Setup
from covist.config import CovistConfig
from covist.errors import CovistError
from covist.request.concentration import MEASURED
from covist.request.loading import EMBEDDED, served_class
from covist.vllm.settings import ARCHITECTURES, Serving


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
    architecture = _architecture(model)
    own = {"instruction": instruction or None, "clip": clip, "columns": columns}
    settings = _given({**_values(setup), **own})
    tracker = Serving.read(settings).method.tracker
    if tracker is None:
        settings.pop("concentration", None)
    elif setup.concentration is None and model in MEASURED:
        settings["concentration"] = MEASURED[model]
    overrides = {"architectures": [architecture], "covist": settings}
    needs_reference = tracker is not None and "concentration" not in settings
    return ServeCommand(str(EMBEDDED.get(model, model)), overrides, needs_reference)


def _architecture(model: str) -> str:
    """The name of the model class that serves a checkpoint."""
    model_class, family = served_class(model)
    name, file = f"Covist{model_class.__name__}", family.__module__.rpartition(".")[2]
    # A family and its vLLM class are in files of the same name; another family may have this class with another tower.
    if not ARCHITECTURES.get(name, "").startswith(f"covist.vllm.{file}:"):
        served = ", ".join(name.removeprefix("Covist") for name in ARCHITECTURES)
        raise CovistError(
            f"vLLM: {model_class.__name__} of the family {family.name} is not supported with compression, only "
            f"{served}; `covist serve` supports every family"
        )
    return name


def _values(setup: Setup) -> dict[str, Any]:
    """The values of a setup for a server: of the constants only those that differ from the paper's."""
    values = {name: value for name, value in setup.to_dict().items() if name not in (VERSION_KEY, "origin")}
    if setup.constants is not None:
        usual, own = CovistConfig().to_dict(), values["constants"]
        values["constants"] = {name: own[name] for name in own if own[name] != usual[name]} or None
    return values


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
