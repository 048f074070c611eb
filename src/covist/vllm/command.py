"""The command that serves a checkpoint in vLLM with compression, as `covist vllm-args` prints it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from covist.api.origin import check_origin
from covist.api.setup import DEFAULT_METHOD, VERSION_KEY, Setup
from covist.config import CovistConfig
from covist.contract.family import Family
from covist.errors import CovistError
from covist.request.checkpoints import EMBEDDED, served
from covist.request.concentration import MEASURED
from covist.vllm.limits import UNFIT, require_fit
from covist.vllm.settings import BY_EMBEDDINGS, PREFIX, Serving, require_readable
from covist.vllm.tower import family_read

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
    architecture, family, config = _class_in_vllm(model)
    tower_is_read = config is not None and family_read(config, architecture) is not None
    usual = DEFAULT_METHOD if tower_is_read and family.needs_clip_text else BY_EMBEDDINGS
    setup = setup.over(Setup(method=usual, budget=family.default_budget))
    own = {"instruction": instruction or None, "clip": clip, "columns": columns}
    settings = {name: value for name, value in {**_values(setup), **own}.items() if value is not None}
    serving = Serving.read(settings)
    if config is not None:
        check_origin(setup, config, serving.method)
    require_readable(serving, architecture, tower_is_read)
    tracker = serving.method.tracker
    if tracker is None:
        settings.pop("concentration", None)
    elif setup.concentration is None and model in MEASURED:
        settings["concentration"] = MEASURED[model]
    overrides = {"architectures": [f"{PREFIX}{architecture}"], "covist": settings}
    needs_reference = tracker is not None and "concentration" not in settings
    return ServeCommand(str(EMBEDDED.get(model, model)), overrides, needs_reference)


def _class_in_vllm(model: str) -> tuple[str, type[Family], Any]:
    """vLLM's class for a checkpoint, its family and its configuration, which is None if transformers cannot read it."""
    try:
        name, family, config = served(model)
    except CovistError:
        if (own := _own_class(model)) is None:
            raise
        name, family, config = own, Family, None  # type: ignore[type-abstract]
    require_fit(name)
    return name if name in MODELS else BACKEND, family, config


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
