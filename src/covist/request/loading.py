"""A model by name: the embedded one, a folder, or an id of the hub."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig

from covist import tiny
from covist.contract.family import Family
from covist.engine.attention.interface import backend_of
from covist.errors import CovistError
from covist.families.processors import load_processor
from covist.families.refusals import image_text_models, refusal
from covist.families.registry import family_for, find_family, served_classes

EMBEDDED = {"tiny": tiny.WEIGHTS, "tiny-next": tiny.NEXT_WEIGHTS}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_NO_ANSWER = "the Hugging Face hub did not provide it"


@dataclass(frozen=True)
class LoadedModel:
    """A model with everything that `covist.compress` needs."""

    name: str
    model: Any
    processor: Any
    clip: Any | None = None

    @property
    def dtype(self) -> str:
        """The dtype of the weights, for example "float32"."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def attention(self) -> str:
        """The decoder's attention backend."""
        return backend_of(family_for(self.model).decoder)


def load_model(
    name: str = "tiny",
    clip: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    attention: str | None = None,
) -> LoadedModel:
    """Load `name` ("tiny", "tiny-next", a folder or a hub id); `clip` is the CLIP checkpoint of its vision tower.

    dtype: for example "float16"; by default the checkpoint's own, and float32 on the CPU
    attention: one of transformers' attention backends, for example "sdpa"
    """
    place = find_device(device)
    stored = _dtype(dtype, place)
    if clip is not None and not Path(clip).is_dir():
        _ask_hub_once(clip, f"unknown CLIP checkpoint {clip!r}: not a folder")
    folder = EMBEDDED.get(name, Path(name))
    if name in EMBEDDED or (folder / "clip" / "text.safetensors").exists():  # written by our training recipe
        model, processor, (text_tower, words) = tiny.load(folder)
        for part in (model, text_tower):
            nn.Module.to(part, place, None if stored == "auto" else stored)
        if attention is not None:
            model.set_attn_implementation(attention)
        return LoadedModel(name, model, processor, clip or (text_tower, words))
    try:
        model_class, family = served_class(name)
        model = model_class.from_pretrained(name, dtype=stored, attn_implementation=attention).to(place).eval()
        return LoadedModel(name, model, load_processor(family, name), clip)
    except OSError as error:
        raise CovistError(f"cannot load model {name!r}: {_first_line(error)}") from error


def _dtype(name: str, place: torch.device) -> Any:
    """The value for `dtype` of `from_pretrained`."""
    if name == "auto":
        return torch.float32 if place.type == "cpu" else "auto"
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CovistError(f"dtype {name!r} is not a dtype of weights; choose auto, float32, bfloat16 or float16")
    return found


def served_class(name: str) -> tuple[Any, type[Family]]:
    """The transformers class of a checkpoint and its family, from its configuration, before any weights are read."""
    model_class, family, _ = served(name)
    return getattr(transformers, model_class), family


def served(name: str) -> tuple[str, type[Family], Any]:
    """The name of a checkpoint's class, its family and its configuration; refused if it cannot be compressed."""
    config = _read_config(str(EMBEDDED.get(name, name)))
    model_type, listed = config.model_type, image_text_models()
    if reason := refusal(config):
        raise CovistError(f"model {name!r} ({model_type}) is not supported: {reason}")
    architectures = config.architectures or [listed[model_type]] if model_type in listed else config.architectures
    known = [name for name in architectures or () if name in listed.values() or name in served_classes()]
    if not known:
        if hasattr(config, "vision_config"):
            raise CovistError(
                f"model {name!r} ({model_type}) is not supported: it does not write text about images (`covist models` "
                "lists supported types)"
            )
        raise CovistError(f"model {name!r} is text-only ({model_type}): there are no visual tokens to compress")
    return *find_family(known, config), config


def _read_config(name: str) -> Any:
    unknown = f"unknown model {name!r}: neither {' nor '.join(map(repr, EMBEDDED))} nor a folder with a config.json"
    if name and Path(name).is_dir():
        _check_folder(Path(name))
    else:
        _ask_hub_once(name, unknown)
    try:
        return AutoConfig.from_pretrained(name)
    except OSError as error:
        raise CovistError(f"{unknown}, and {_NO_ANSWER} ({_first_line(error)})") from None
    except ValueError as error:
        raise CovistError(f"cannot read the configuration of model {name!r}: {_first_line(error)}") from None


def _check_folder(folder: Path) -> None:
    """Refuse a folder whose config.json transformers could not use, with a line that says why."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CovistError(
            f"the folder '{folder}' has no config.json; give a folder that save_pretrained wrote"
        ) from None
    except ValueError as error:
        raise CovistError(f"'{folder}/config.json' is not JSON: {_first_line(error)}") from None
    model_type = fields.get("model_type") if isinstance(fields, dict) else None
    if model_type is None:
        raise CovistError(f"'{folder}/config.json' has no model_type; it is not the configuration of a model")
    if model_type not in CONFIG_MAPPING and "auto_map" not in fields:
        raise CovistError(
            f"model type {model_type!r} of '{folder}/config.json' is not in transformers {transformers.__version__}; "
            "update transformers"
        )


def _ask_hub_once(name: str, unknown: str) -> None:
    """Refuse a name that cannot be on the hub, or that is not cached while the hub cannot be reached.

    The hub's client would try six times within half a minute and log every attempt.
    """
    if not HUB_ID.fullmatch(name):
        raise CovistError(unknown)
    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HfHubHTTPError:
        return  # the hub was reached; `from_pretrained` handles its answer
    except Exception as error:  # from whichever HTTP client the hub's library uses
        raise CovistError(f"{unknown}, and {_NO_ANSWER} ({_first_line(error)})") from None


def find_device(name: str) -> torch.device:
    """A device that is available; "auto" prefers a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise CovistError(f"device {name!r} is not available: {_first_line(error)}") from None
    return place


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
