"""What the configuration of a checkpoint says before any weights are read: its class, its family, and what is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from transformers import CONFIG_MAPPING, AutoConfig

from covist import tiny
from covist.contract.family import Family
from covist.errors import CovistError
from covist.families.refusals import image_text_models, refusal
from covist.families.registry import find_family, served_classes
from covist.files import parse_json
from covist.loading import AS_STORED, Loading
from covist.request.weights import first_line, hub_options
from covist.tiny.films import VIDEO_WEIGHTS

EMBEDDED = {"tiny": tiny.WEIGHTS, "tiny-next": tiny.NEXT_WEIGHTS, "tiny-video": VIDEO_WEIGHTS}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_NO_ANSWER = "the Hugging Face hub did not provide it"
_AUTO_CLASSES = ("AutoModelForImageTextToText", "AutoModelForCausalLM", "AutoModel")
"""Under which of transformers' classes the code of a checkpoint may register its own."""


def served_class(name: str, loading: Loading = AS_STORED) -> tuple[Any, type[Family]]:
    """The class that reads a checkpoint and its family, from its configuration, before any weights are read."""
    model_class, family, config = served(name, loading)
    if loading.quantization is not None and getattr(config, "quantization_config", None):
        raise CovistError(f"model {name!r} is quantised already; omit quantization")
    return getattr(transformers, _own_code(config, loading) or model_class), family


def served(name: str, loading: Loading = AS_STORED) -> tuple[str, type[Family], Any]:
    """The name of a checkpoint's class, its family and its configuration; refused if it cannot be compressed."""
    config = _read_config(str(EMBEDDED.get(name, name)), loading)
    model_type, listed = config.model_type, image_text_models()
    if reason := refusal(config):
        raise CovistError(f"model {name!r} ({model_type}) is not supported: {reason}")
    if auto_class := _own_code(config, loading):
        return *find_family([config.auto_map[auto_class].rpartition(".")[2]], config), config
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


def is_folder(name: str) -> bool:
    """Whether a model is a folder of this machine; a name may be anything, also one that no file can have."""
    return bool(name) and os.path.isdir(name)


def _own_code(config: Any, loading: Loading) -> str | None:
    """The class of transformers that loads a model by the code that comes with it, if that is trusted."""
    given = getattr(config, "auto_map", None) or {}
    return next((name for name in _AUTO_CLASSES if name in given), None) if loading.trust_remote_code else None


def _read_config(name: str, loading: Loading) -> Any:
    unknown = f"unknown model {name!r}: neither {' nor '.join(map(repr, EMBEDDED))} nor a folder with a config.json"
    if is_folder(name):
        _check_folder(Path(name), loading)
    else:
        ask_hub_once(name, unknown, loading.revision)
    try:
        return AutoConfig.from_pretrained(name, **hub_options(loading))
    except OSError as error:
        raise CovistError(f"{unknown}, and {_NO_ANSWER} ({first_line(error)})") from None
    except Exception as error:  # libraries read the values of somebody's file, each with errors of its own
        if "trust_remote_code" in str(error):
            raise CovistError(_untrusted(name)) from None
        raise CovistError(f"cannot read the configuration of model {name!r}: {first_line(error)}") from None


def _untrusted(name: str) -> str:
    return (
        f"model {name!r} comes with Python code of its own; if you trust its source, give --trust-remote-code "
        "(trust_remote_code=True)"
    )


def _check_folder(folder: Path, loading: Loading) -> None:
    """Refuse a folder whose config.json transformers could not use, with a line that says why."""
    try:
        fields = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CovistError(
            f"the folder '{folder}' has no config.json; give a folder that save_pretrained wrote"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CovistError(f"'{folder}/config.json' cannot be read: {first_line(error)}") from None
    except ValueError as error:
        raise CovistError(f"'{folder}/config.json' is not JSON: {first_line(error)}") from None
    model_type = fields.get("model_type") if isinstance(fields, dict) else None
    if model_type is None:
        raise CovistError(f"'{folder}/config.json' has no model_type; it is not the configuration of a model")
    if model_type in CONFIG_MAPPING:
        return
    if "auto_map" not in fields:
        raise CovistError(
            f"model type {model_type!r} of '{folder}/config.json' is not in transformers {transformers.__version__}; "
            "update transformers"
        )
    if not loading.trust_remote_code:
        raise CovistError(_untrusted(str(folder)))


def ask_hub_once(name: str, unknown: str, revision: str | None = None, file: str = "config.json") -> None:
    """Refuse a name that cannot be on the hub, or that is not cached while the hub cannot be reached.

    The hub's client would try six times within half a minute and log every attempt.
    """
    if not HUB_ID.fullmatch(name):
        raise CovistError(unknown)
    try:
        if not isinstance(try_to_load_from_cache(name, file, revision=revision), str):
            get_hf_file_metadata(hf_hub_url(name, file, revision=revision))
    except HfHubHTTPError:
        return  # the hub was reached; `from_pretrained` handles its answer
    except Exception as error:  # from whichever HTTP client the hub's library uses
        raise CovistError(f"{unknown}, and {_NO_ANSWER} ({first_line(error)})") from None
