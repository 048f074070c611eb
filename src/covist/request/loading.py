"""A model by name: the embedded one, a folder, or an id of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covist.api.setup import Setup
from covist.engine.attention.interface import backend_of
from covist.errors import CovistError
from covist.families.processors import load_processor
from covist.families.registry import family_for
from covist.loading import AS_STORED, Loading
from covist.request.checkpoints import EMBEDDED, ask_hub_once, is_folder, served_class
from covist.request.weights import find_device, first_line, hub_options, require_packages, weight_options
from covist.tiny.store import has_clip, load_clip


@dataclass(frozen=True)
class LoadedModel:
    """A model with everything that `covist.compress` needs; `model, processor, clip = loaded` takes it apart.

    loading: how it was loaded

    >>> loaded = covist.load_model("tiny")
    >>> loaded.dtype, loaded.attention
    ('float32', 'sdpa')
    """

    name: str
    model: Any
    processor: Any
    clip: Any | None = None
    loading: Loading = AS_STORED

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.processor, self.clip))

    @property
    def defaults(self) -> Setup:
        """What the model decides if nobody says it: the budget."""
        return Setup(budget=family_for(self.model).default_budget)

    @property
    def dtype(self) -> str:
        """The dtype of the weights, for example "float32"."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def attention(self) -> str:
        """The decoder's attention backend."""
        return backend_of(family_for(self.model).decoder)


def load_model(
    name: str = "tiny", clip: str | None = None, loading: Loading = AS_STORED, **options: Any
) -> LoadedModel:
    """Load a model with its processor: everything that `covist.compress` needs.

    name: "tiny", "tiny-next" or "tiny-video" (embedded), a folder, or an id of the Hugging Face hub
    clip: the CLIP checkpoint that the vision tower comes from, if it is a CLIP tower
    loading: precision, attention backend, places, quantisation, adapter, revision and trust
    options: single fields of `covist.Loading`, which take precedence

    >>> model, processor, clip = covist.load_model("tiny", dtype="bfloat16", attention="eager")
    >>> model.dtype
    torch.bfloat16
    """
    how = replace(loading, **options)
    require_packages(how)
    own = EMBEDDED.get(name, Path(name))
    if how.revision is not None and is_folder(str(own)):
        raise CovistError(f"revision {how.revision!r} is for models of the hub; {name!r} is on this machine")
    if clip is not None and not is_folder(clip):
        ask_hub_once(clip, f"unknown CLIP checkpoint {clip!r}: not a folder")
    place = find_device(how.device or "auto")
    weights, source = weight_options(how, place), str(own) if name in EMBEDDED else name
    model_class, family = served_class(name, how)
    with _in_one_line(f"cannot load model {name!r}"):
        model = model_class.from_pretrained(source, **weights, **hub_options(how)).eval()
        processor = load_processor(family, source, **hub_options(how))
    if "device_map" not in weights:
        model = model.to(place)
    if how.adapter is not None:
        _add_adapter(model, how.adapter)
    if clip is None and is_folder(str(own)) and has_clip(own):  # written by our training recipe
        return LoadedModel(name, model, processor, load_clip(own, model.dtype), how)
    return LoadedModel(name, model, processor, clip, how)


def _add_adapter(model: Any, adapter: str) -> None:
    if not is_folder(adapter):
        ask_hub_once(adapter, f"unknown adapter {adapter!r}: not a folder", file="adapter_config.json")
    before = {name for name, _ in model.named_parameters()}
    with _in_one_line(f"cannot load adapter {adapter!r}"):
        found = model.load_adapter(adapter)
    if found.missing_keys or found.unexpected_keys:
        raise CovistError(f"adapter {adapter!r} does not fit this model: it was made for another one")
    if any(weights.is_meta for name, weights in model.named_parameters() if name not in before):
        # transformers leaves them without values, and the model writes nonsense.
        raise CovistError(f"adapter {adapter!r} changes layers that the device map offloads; keep these in memory")


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    """Whatever is wrong with somebody's files is one line: many libraries read them, each with errors of its own."""
    try:
        yield
    except CovistError:
        raise
    except Exception as error:
        raise CovistError(f"{what}: {first_line(error)}") from error
