"""Facts about every image-text model of transformers: whether it runs, what is read of it, what its layers are.

Facts are of the default configuration of a model type, or of its published sizes; a checkpoint may differ.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from covist.contract.family import Family
from covist.contract.text_config import field, geometry_of, text_config
from covist.errors import CovistError, choose_instead
from covist.families.presets import PRESETS
from covist.families.refusals import STATED, image_text_models, refusal
from covist.families.registry import families
from covist.plan import Geometry

CLASS, INCOMING, UNIFORM = "class token", "incoming", "uniform"
EVIDENCE = {
    CLASS: "attention of the class token of the vision tower",
    INCOMING: "attention that the patches of an image pay to each other in the last layer of the vision tower",
    UNIFORM: "no attention of the vision tower: what makes tokens distinct decides",
}
"""Where the weights of an image's tokens come from, in a word and in a sentence."""
QUERIES_BETWEEN = "learned queries stand between patches and tokens"
UNREAD = {
    **dict.fromkeys(("aria", "deepseek_ocr2", "granite4_vision", "idefics2"), QUERIES_BETWEEN),
    **dict.fromkeys(("fast_vlm", "gemma3n"), "the tower has no attention"),
    **dict.fromkeys(("fuyu", "gemma4_unified", "inkling_mm_model"), "there is no tower with attention"),
    **dict.fromkeys(("got_ocr2", "perception_lm", "pp_chart2table"), "the tower computes its attention by itself"),
    "emu3": "tokens are entries of a codebook",
    "gemma4": "patches are pooled by their positions",
    "hunyuan_vl": "separators stand between the rows of tokens",
    "step3p7": "tokens are convolutions of many patches",
    "video_llama_3": "patches are merged by interpolation",
}
"""Model type -> why the attention of its tokens in the tower cannot be read."""

FEW = "about 256 tokens per image by default: little to gain at that resolution"
PAGES = "reads pages, where most tokens are text: begin with large budgets"
QUERIES = "learned queries have condensed the image already: little to gain"
NO_TOWER = "no vision tower: nothing but embeddings can be read"
AUDIO = "audio stays as it is"
PADDING = "the plain model is not exact with left padding: use prompts of one length"
NOTES = {
    **dict.fromkeys(("fast_vlm", "gemma3", "gemma3n", "gemma4", "paligemma", "shieldgemma2"), FEW),
    **dict.fromkeys(("deepseek_ocr2", "glm_ocr", "got_ocr2", "lighton_ocr", "minicpm_ocr"), PAGES),
    **dict.fromkeys(("paddleocr_vl", "pp_chart2table", "qianfan_ocr"), PAGES),
    **dict.fromkeys(("aria", "idefics2"), QUERIES),
    **dict.fromkeys(("emu3", "fuyu", "gemma4_unified"), NO_TOWER),
    **dict.fromkeys(("nemotron_h_omni", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), AUDIO),
    **dict.fromkeys(("hunyuan_vl", "minimax_m3_vl"), PADDING),
}
GRIDS = ("image_grid", "spatial_shapes", "target_sizes", "image_position_ids", "image_sizes")
"""How the names of arguments begin that describe the layout of an image's tokens."""
READABLE = ("full", "sliding", "chunked")
"""Kinds of decoder layers whose queries, keys and values can be read."""
CLOSED = ("fuyu", "gemma3n", "inkling_mm_model")
"""Model types of which they cannot be read all the same: fused, shared or convolved keys."""
VIDEOS = {
    **dict.fromkeys(("minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "nemotron_h_omni"), True),
    **dict.fromkeys(("paddleocr_vl", "perception_lm"), False),
}
"""Whether a model has `get_video_features`, where its configuration says otherwise."""


@dataclass(frozen=True)
class ModelType:
    """One model type of transformers' list.

    runs: "file" if a family file describes it, "generic" if it runs without one, None if it is refused
    layers: how many layers there are of each kind
    """

    model_type: str
    model_class: str
    runs: str | None
    families: tuple[str, ...] = ()
    evidence: str = ""
    layers: tuple[tuple[str, int], ...] = ()
    video: bool = False
    tokens: str = ""
    presets: tuple[str, ...] = ()
    note: str = ""
    refusal: str | None = None

    @property
    def kinds(self) -> str:
        """`linear, full`."""
        return ", ".join(kind for kind, _ in self.layers)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "layers": dict(self.layers)}


def model_types() -> list[ModelType]:
    """Every model type that the installed transformers lists as image-text-to-text."""
    return [_facts(model_type, model_class) for model_type, model_class in image_text_models().items()]


def model_type_named(name: str) -> ModelType:
    """By its model type, its class, or a family that describes it."""
    listed = image_text_models()
    described = {family.name: family.model_classes for family in families()}
    for model_type, model_class in listed.items():
        if name in (model_type, model_class) or model_class in described.get(name, ()):
            return _facts(model_type, model_class)
    hint = choose_instead(name, [*listed, *described], otherwise="`covist models` lists all of them")
    raise CovistError(f"transformers has no image-text model of type {name!r}; {hint}")


def layer_counts(geometry: Geometry) -> tuple[tuple[str, int], ...]:
    """How many layers there are of each kind, in the order in which the kinds first appear."""
    return tuple(Counter(layer.kind for layer in geometry.kinds()).items())


def evidence_of(model_type: str, served_by: Sequence[type[Family]] = ()) -> str:
    """Where the weights of tokens come from: a key of EVIDENCE."""
    if any(family.needs_clip_text for family in served_by):
        return CLASS
    return UNIFORM if model_type in UNREAD else INCOMING


def grid_source(entry: ModelType) -> str:
    """Where rows and columns of tokens come from."""
    if entry.tokens:
        return "as its file describes"
    named = [name for name in _arguments(entry.model_class) if name.startswith(GRIDS)]
    guess = "a square where the number of tokens allows it, else a line"
    return f"{named[0]}, else {guess}" if named else f"the proportions of the image, else {guess}"


def readable_layers(entry: ModelType) -> str:
    """What methods that act inside the decoder find there."""
    layers = dict(entry.layers)
    total, readable = sum(layers.values()), sum(layers.get(kind, 0) for kind in READABLE)
    if not readable or entry.model_type in CLOSED:
        return "no layer can be read: CoViST-Pro and others that act inside the decoder are refused"
    return f"methods read {readable} of {total} layers" if readable < total else f"methods read all {total} layers"


def _arguments(model_class: str) -> list[str]:
    """The arguments of `get_image_features`, of a class or of one in its file that it is made of."""
    import transformers

    outer = getattr(transformers, model_class)
    in_file = [kind for _, kind in inspect.getmembers(sys.modules[outer.__module__], inspect.isclass)]
    found = [kind.get_image_features for kind in (outer, *in_file) if hasattr(kind, "get_image_features")]
    return [name for function in found for name in inspect.signature(function).parameters]


def _facts(model_type: str, model_class: str) -> ModelType:
    served_by = [family for family in families() if model_class in family.model_classes]
    described_by = [family for family in served_by if family.presets]  # a file may leave the facts to the configuration
    # A stated reason needs no configuration; some releases of transformers cannot build a default one.
    config = None if described_by or model_type in STATED else _default(model_type)
    reason = None if served_by else STATED.get(model_type) or refusal(config)
    if reason is not None:
        return ModelType(model_type, model_class, None, refusal=reason)
    sizes = [size for family in described_by for size in family.presets] or list(PRESETS.get(model_type, ()))
    return ModelType(
        model_type,
        model_class,
        "file" if served_by else "generic",
        tuple(family.name for family in served_by),
        evidence_of(model_type, served_by),
        layer_counts(sizes[0]) if sizes else _default_layers(config),
        _takes_videos(model_type, described_by, config),
        "; ".join(dict.fromkeys(family.token_count for family in described_by)),
        tuple(size.name for size in sizes),
        NOTES.get(model_type, ""),
    )


def _default(model_type: str) -> Any:
    """The default configuration of a model type; None if this release of transformers cannot build one."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # defaults that no checkpoint has may come with warnings
    try:
        return CONFIG_MAPPING[model_type]()
    except Exception:
        return None
    finally:
        logging.set_verbosity(before)


def _default_layers(config: Any) -> tuple[tuple[str, int], ...]:
    return () if config is None else layer_counts(geometry_of(text_config(config)))


def _takes_videos(model_type: str, described_by: Sequence[type[Family]], config: Any) -> bool:
    if described_by:
        return any(family.takes_videos() for family in described_by)
    return VIDEOS.get(model_type, field(config, "video_token_id", "video_token_index") is not None)
