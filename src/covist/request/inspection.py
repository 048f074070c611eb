"""What the files of a checkpoint tell before any weights are read: tokens per image, and what budgets save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from covist.budget import Budget
from covist.contract.family import Family
from covist.contract.text_config import field, geometry_of, text_config
from covist.errors import CovistError
from covist.families.catalogue import evidence_of, layer_counts
from covist.families.presets import PRESETS
from covist.families.processors import load_processor
from covist.families.registry import families
from covist.plan import Geometry, make_plan
from covist.request.checkpoints import EMBEDDED, served

SIZES = ((224, 224), (448, 448), (1024, 768), (1920, 1080))
"""Width and height of images, in pixels."""
USUAL = "1024 x 768"  # the image of a plan
BUDGETS = ("25%", "64")
BY_PROCESSOR = "the checkpoint's processor"
BY_CONFIGURATION = "the configuration; the checkpoint's processor may resize or tile images"
BY_PRESET = "a published model of this type"
UNKNOWN = "the configuration does not say it, and there is no processor"


@dataclass(frozen=True)
class ImageCost:
    """An image of some size: its tokens, and for each budget the shares of FLOPs and cache that are left."""

    image: str
    tokens: int
    left: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Inspection:
    """A checkpoint that can be compressed.

    family: the family that serves it; `generic` if no file describes it
    evidence: a key of `covist.families.catalogue.EVIDENCE`
    counted_by: what says how many tokens images have
    """

    model_type: str
    model_class: str
    family: str
    evidence: str
    layers: tuple[tuple[str, int], ...]
    images: tuple[ImageCost, ...]
    counted_by: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "layers": dict(self.layers)}


def inspect_checkpoint(name: str) -> Inspection:
    """Look at a folder, an embedded model or a hub id; of the latter, only the configuration is read."""
    model_class, family, config = served(name)
    geometry = geometry_of(text_config(config), name)
    counts, counted_by = _token_counts(EMBEDDED.get(name, Path(name)), family, config)
    return Inspection(
        config.model_type,
        model_class,
        family.name,
        evidence_of(config.model_type, [family] if family in families() else ()),
        layer_counts(geometry),
        tuple(_cost(geometry, image, tokens) for image, tokens in counts),
        counted_by,
    )


@dataclass(frozen=True)
class PlannedCheckpoint:
    """The decoder of a checkpoint with the tokens of one image, and the budget that is its default.

    image: what has so many tokens, and what says so; empty if the caller did
    """

    geometry: Geometry
    budget: Budget
    image: str = ""


def planned_checkpoint(name: str, tokens: int | None = None) -> PlannedCheckpoint:
    """What a plan needs to know of a folder, an embedded model or a hub id; tokens: of an image, if not a usual one."""
    _, family, config = served(name)
    named = partial(geometry_of, text_config(config), Path(name).name or name)
    if tokens is not None:
        return PlannedCheckpoint(named(tokens), family.default_budget)
    counts, counted_by = _token_counts(EMBEDDED.get(name, Path(name)), family, config)
    if not counts:
        raise CovistError(f"model {name!r}: how many tokens images have is not known ({UNKNOWN}); give --tokens")
    image, count = next((one for one in counts if one[0] == USUAL), counts[0])
    return PlannedCheckpoint(named(count), family.default_budget, f"{image}, by {counted_by}")


def _cost(geometry: Geometry, image: str, tokens: int) -> ImageCost:
    plans = {budget: make_plan(geometry, budget, tokens=tokens) for budget in BUDGETS}
    left = {
        budget: (plan.flops / plan.flops_uncompressed, plan.kv_bytes / plan.kv_bytes_uncompressed)
        for budget, plan in plans.items()
    }
    return ImageCost(image, tokens, left)


def _token_counts(folder: Path, family: type[Family], config: Any) -> tuple[Sequence[tuple[str, int]], str]:
    """(Image, tokens), and what says so."""
    if folder.is_dir() and (counted := _by_processor(folder, family)):
        return counted, BY_PROCESSOR
    if counted := _by_configuration(config):
        return counted, BY_CONFIGURATION
    published = [*family.presets, *PRESETS.get(config.model_type, ())][:1]
    return [(size.name, size.tokens) for size in published], BY_PRESET if published else UNKNOWN


def _by_processor(folder: Path, family: type[Family]) -> list[tuple[str, int]]:
    """Tokens as the checkpoint's processor counts them; nothing if it cannot be loaded or does not count."""
    sizes = [(height, width) for width, height in SIZES]
    try:
        counts = load_processor(family, str(folder))._get_num_multimodal_tokens(image_sizes=sizes)["num_image_tokens"]
    except Exception:  # files are missing, or a library that this processor needs: many kinds of errors
        return []
    return [(f"{width} x {height}", int(count)) for (height, width), count in zip(sizes, counts, strict=True)]


def _by_configuration(config: Any) -> list[tuple[str, int]]:
    """Tokens as far as fields give them, without a guess about what a projector does."""
    vision = field(config, "vision_config")
    whole = field(config, "mm_tokens_per_image", "vision_soft_tokens_per_image")
    if whole:
        return [("any size", int(whole))]
    patch, merge = _side(field(vision, "patch_size")), _side(field(vision, "spatial_merge_size", "merge_kernel_size"))
    merge = merge or _side(field(config, "spatial_merge_size"))
    if patch and merge:
        cell = patch * merge
        return [
            (f"{width} x {height}", max(1, round(width / cell)) * max(1, round(height / cell)))
            for width, height in SIZES
        ]
    side, shortened = _side(field(vision, "image_size")), _shortening(config)
    return [("each tile", int(side // patch // shortened) ** 2)] if patch and side and shortened else []


def _shortening(config: Any) -> float | None:
    """How many times shorter the sides of a grid of tokens are than those of its patches."""
    ratio = field(config, "downsample_ratio") or field(field(config, "vision_config"), "pixel_shuffle_ratio")
    return 1 / ratio if ratio else field(config, "downsample_factor", "scale_factor")


def _side(size: Any) -> int | None:
    return size[0] if isinstance(size, (list, tuple)) and size else size or None
