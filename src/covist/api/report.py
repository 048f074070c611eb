"""The report of a prefill: tokens per layer, states, and savings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from covist.engine.decoder import FrozenDecoder
from covist.engine.prefill import Prefill
from covist.engine.sequence.images import ImageInPrompt
from covist.errors import CovistError
from covist.grid import PartialGrid
from covist.report.films import whole_videos
from covist.report.pixels import Preprocessing
from covist.report.stages import ImageReport, StageReport
from covist.units import counted, milliseconds, number, operations, share, size

if TYPE_CHECKING:
    from PIL import Image

    from covist.viz.theme import Theme

    Frames = Sequence[Image.Image]
    Original = Image.Image | Frames
    """An image, or the frames of a video."""

_LISTED = 4
"""Images and videos that a summary lists one by one."""


UNIFORM = "without the attention of the vision tower, which cannot be read: all patches count the same"


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What the last prefill with images or videos did: tokens kept, memory and operations saved, time spent.

    images: one report for each image, video or segment of a long video
    text_tokens: number of text tokens of each sample
    kv_bytes, kv_bytes_uncompressed: size of the cache after prefill, with and without compression
    flops, flops_uncompressed: operations of the decoder's prefill (Eq. 19), with and without compression
    seconds: host time for "selection", "composition" and "rest", not synchronised with an accelerator
    method: name of the method

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model.generate(**inputs, max_new_tokens=8)
    >>> handle.report.images[0]
    ImageReport(576 tokens in 24 x 24; layers 0-7: 64 tokens)
    >>> handle.report.images[0].kept.shape, handle.report.images[0].assignment.shape
    (torch.Size([64]), torch.Size([576]))
    """

    images: tuple[ImageReport, ...]
    text_tokens: tuple[int, ...]
    kv_bytes: float
    kv_bytes_uncompressed: float
    flops: float
    flops_uncompressed: float
    seconds: dict[str, float]
    method: str = ""

    @cached_property
    def visuals(self) -> tuple[ImageReport, ...]:
        """The images and whole videos of the prompts, in order; the segments of a video are joined."""
        return whole_videos(self.images)

    @property
    def tokens(self) -> float:
        """Visual tokens before compression, averaged over images and videos."""
        return sum(image.tokens for image in self.visuals) / len(self.visuals)

    @property
    def mean_tokens(self) -> float:
        """Visual tokens in prefill after compression, averaged over layers and over images and videos."""
        return sum(image.mean_tokens for image in self.visuals) / len(self.visuals)

    @property
    def mean_cached_tokens(self) -> float:
        """Visual tokens in the cache after prefill, averaged over layers and visuals: what a budget counts."""
        return sum(image.mean_cached_tokens for image in self.visuals) / len(self.visuals)

    @property
    def summary(self) -> str:
        """One line: images and videos, and their visual tokens after and before compression."""
        average = "" if len(self.visuals) == 1 else " each"
        kept = f"{number(self.mean_tokens)} of {number(self.tokens)} visual tokens{average} per layer"
        line = f"{self._shown}, {kept} ({share(self.mean_tokens, self.tokens)})"
        cached = self.mean_cached_tokens
        if cached != self.mean_tokens:
            line = f"{line}, {number(cached)} cached ({share(cached, self.tokens)})"
        whole = sum(image.missed is not None for image in self.visuals)
        return f"{line}, {whole} of them uncompressed: coverage would have been too low" if whole else line

    @property
    def _shown(self) -> str:
        """`1 image`, `1 video of 8 frames`, `2 images and 1 video`."""
        kinds = [image.kind for image in self.visuals]
        if kinds == ["video"]:
            return f"1 {self.visuals[0].describe()}"
        return " and ".join(counted(kinds.count(kind), kind) for kind in dict.fromkeys(kinds))

    def __repr__(self) -> str:
        facts = self._facts()
        width = max(map(len, facts))
        return "\n".join([f"Report of {self._title}", *(f"  {name:{width}}  {text}" for name, text in facts.items())])

    def _repr_html_(self) -> str:
        from covist.viz import draw_html, seen_views

        views = [seen_views(image) for image in self.visuals]
        return draw_html(self.visuals, views, self._title, self._facts())

    def save(
        self,
        path: str | Path,
        image: Image.Image | Sequence[Original] | None = None,
        which: int | Literal["all"] = 0,
        title: str = "",
        theme: Theme | None = None,
    ) -> None:
        """Write a drawing of what was kept and why; the file name's ending chooses the format.

        .html is a self-contained page: pointing at a representative highlights the tokens that it represents.
        .png, .svg and .pdf are the figure of `covist show`, for image or video number `which`, counted from 0; "all"
        draws a strip of all of them, each with the tokens that it has, for prompts of many images.

        image: the original image, or one for each image of the report, for sharper drawings; by default they show what
            the encoder saw. A video is a list of its frames.
        title: the heading, such as a question and its answer; by default the method
        theme: `covist.viz.LIGHT` or `covist.viz.DARK`; by default figures are light, and a page as the browser is

        >>> import covist, tempfile
        >>> model, processor, clip = covist.tiny.load()
        >>> image, question, answer = covist.tiny.demo()
        >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
        >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
        ...     output = model.generate(**inputs, max_new_tokens=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     handle.report.save(f"{folder}/kept.html")
        ...     handle.report.save(f"{folder}/kept.png", image=image)
        """
        from covist import viz
        from covist.viz.files import PAGES, check_ending

        ending = check_ending(path)
        given = self._given(image)
        if ending in PAGES:
            views = [viz.seen_views(*pair) for pair in zip(self.visuals, given, strict=True)]
            heading, facts = (title, {"method": self._title}) if title else (self._title, {})
            drawn = viz.draw_html(
                self.visuals, views, heading, {**facts, **self._facts()}, evidence=True, theme=theme or viz.LIGHT
            )
            viz.save_page(drawn, path, heading, theme)
            return
        if which == "all":
            views = [viz.seen_views(*pair) for pair in zip(self.visuals, given, strict=True)]
            strip = viz.draw_strip(self.visuals, views, title or self.method, self.summary, theme or viz.LIGHT)
            viz.save_figure(strip, path)
            return
        if not 0 <= which < len(self.visuals):
            raise CovistError(f"which={which}: the report has {self._shown}, counted from 0")
        shown = self.visuals[which]
        draw = viz.draw_film if shown.is_video else viz.draw_report
        seen = viz.seen_views(shown, given[which])
        viz.save_figure(draw(shown, seen, title or self.method, shown.summary, theme=theme or viz.LIGHT), path)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "images": [_image_dict(image) for image in self.visuals],
            "text_tokens": list(self.text_tokens),
            "mean_tokens": self.mean_tokens,
            "mean_cached_tokens": self.mean_cached_tokens,
            "kv_bytes": self.kv_bytes,
            "kv_bytes_uncompressed": self.kv_bytes_uncompressed,
            "flops": self.flops,
            "flops_uncompressed": self.flops_uncompressed,
            "seconds": self.seconds,
        }

    @property
    def _title(self) -> str:
        return f"{self.method}: {self.summary}" if self.method else self.summary

    def _given(self, image: Image.Image | Sequence[Original] | None) -> Sequence[Original | None]:
        """The original of every image and video; None where none was given."""
        count = len(self.visuals)
        if image is None:
            return [None] * count
        originals: list[Any] = list(image) if isinstance(image, Sequence) else [image]
        if count == 1 and self.visuals[0].is_video and not isinstance(originals[0], Sequence):
            return [originals]  # the frames of the only video
        if len(originals) != count:
            raise CovistError(f"image=: the report has {self._shown}, got {len(originals)}; pass one for each")
        return originals

    def _facts(self) -> dict[str, str]:
        """The lines of a summary, by name."""
        stages = {}
        for place, image in enumerate(self.visuals[:_LISTED]):
            line = ", ".join(image.describe_stage(stage) for stage in range(len(image.stages)))
            certificate = image.certificate
            if len(self.visuals) == 1:
                stages = {"stages": line, **({} if certificate is None else {"certificate": str(certificate)})}
            else:
                covered = "" if certificate is None else f"; {share(certificate.coverage, 1)} covered"
                stages[f"{image.kind} {place}"] = line + covered
        if len(self.visuals) > _LISTED:
            stages["images"] = f"{len(self.visuals) - _LISTED} more in .visuals"
        spent = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in self.seconds.items())
        return {
            **stages,
            **self._encoded(),
            **({"evidence": UNIFORM} if any(image.uniform for image in self.visuals) else {}),
            "KV cache": _saved(self.kv_bytes, self.kv_bytes_uncompressed, size),
            "prefill FLOPs": _saved(self.flops, self.flops_uncompressed, operations),
            "time spent": f"{milliseconds(sum(self.seconds.values()))} ({spent})" if spent else "not timed",
        }

    def _encoded(self) -> dict[str, str]:
        """How much of the images entered the vision tower, if not all of it."""
        if all(image.encoded is None for image in self.visuals):
            return {}
        tokens = sum(image.tokens for image in self.visuals)
        encoded = sum(image.encoded_tokens for image in self.visuals)
        return {"vision tower": f"the patches of {encoded} of {tokens} tokens ({share(encoded, tokens)})"}


def build_report(prefill: Prefill, decoder: FrozenDecoder) -> Report:
    """Summarise a finished prefill."""
    settings = prefill.settings
    images, texts = [], []
    flops = flops_before = cache = cache_before = 0.0
    for index, sample in enumerate(prefill.samples):
        images += [_image_report(index, image, settings.preprocessing) for image in sample.images]
        text_and_markers = len(sample.staying)
        text = text_and_markers - sum(len(image.markers) for image in sample.images)
        texts.append(text)
        schedules = [image.actual_schedule for image in sample.images]
        lengths = _lengths(text_and_markers, [one.tokens_per_layer for one in schedules], decoder.layers)
        cached = _lengths(text_and_markers, [one.cached_tokens_per_layer for one in schedules], decoder.layers)
        before = [text + sum(image.length for image in sample.images)] * decoder.layers
        flops += decoder.flops(lengths)
        flops_before += decoder.flops(before)
        cache += decoder.kv_bytes(cached)
        cache_before += decoder.kv_bytes(before)
    return Report(
        tuple(images),
        tuple(texts),
        cache,
        cache_before,
        flops,
        flops_before,
        _seconds(prefill),
        settings.method.name,
    )


def _lengths(others: int, images: Sequence[Sequence[int]], layers: int) -> list[int]:
    """Sequence length in each layer: the images' tokens in that layer, and the others, which every layer holds."""
    return [others + sum(tokens[layer] for tokens in images) for layer in range(layers)]


def _image_report(sample: int, image: ImageInPrompt, preprocessing: Preprocessing) -> ImageReport:
    """Refers to small tensors of the states, so that states and signals can be freed."""
    grid = image.signals.grid
    encoded = grid if image.signals.unseen is not None and isinstance(grid, PartialGrid) else None
    stages = tuple(StageReport.of(depth, reduction, encoded) for depth, reduction in image.reductions)
    return ImageReport(
        sample,
        grid if encoded is None else encoded.whole,
        len(image.rows) if encoded is None else encoded.whole.size,
        len(image.markers),
        image.budget,
        image.actual_schedule.tokens_per_layer,
        image.actual_schedule.cached_tokens_per_layer,
        stages,
        _copied(image.signals.read_pixels),
        preprocessing,
        image.signals.continues,
        missed=image.missed,
        uniform=image.signals.uniform,
        encoded=None if encoded is None else encoded.size,
    )


def _copied(read_pixels: Callable[[], list[Tensor]] | None) -> Callable[[], list[Tensor]] | None:
    """The pixels of one image, precise enough to be shown: the original would hold those of its whole batch.

    What a function is given is copied where it is, and read when somebody draws it: reading makes the host wait.
    """
    if read_pixels is None:
        return None
    if isinstance(read_pixels, partial) and any(map(_is_image, read_pixels.args)):
        given = (_half(one) if _is_image(one) else one for one in read_pixels.args)
        return partial(read_pixels.func, *given, **read_pixels.keywords)
    return partial(list, [*map(_half, read_pixels())])


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _half(pixels: Tensor) -> Tensor:
    return pixels.detach().to(torch.float16, copy=True)


def _seconds(prefill: Prefill) -> dict[str, float]:
    """Time of distinct reductions (beams share theirs); "rest" is finding images and instructions, and the ledger."""
    reductions = {id(one): one for image in prefill.images for _, one in image.reductions}.values()
    parts = {name: sum(one.seconds.get(name, 0.0) for one in reductions) for name in ("selection", "composition")}
    return {**parts, "rest": max(0.0, prefill.seconds - sum(parts.values()))}


def _saved(after: float, before: float, unit: Any) -> str:
    return f"{unit(after)} instead of {unit(before)} ({share(after, before)})"


def _image_dict(image: ImageReport) -> dict[str, Any]:
    return {
        "kind": image.kind,
        "sample": image.sample,
        "tokens": image.tokens,
        "markers": image.markers,
        "budget": image.budget,
        "tokens_per_layer": list(image.tokens_per_layer),
        "cached_tokens_per_layer": list(image.cached_tokens_per_layer),
        "mean_tokens": image.mean_tokens,
        "mean_cached_tokens": image.mean_cached_tokens,
        "certificate": None if image.certificate is None else image.certificate.to_dict(),
        "encoded_tokens": image.encoded_tokens,
        "uniform_attention": image.uniform,
        "stages": [
            {
                "depth": stage.depth,
                "indices": stage.kept.tolist(),
                "weights": [round(weight, 4) for weight in stage.weights.tolist()],
                "withheld": stage.withheld,
                **(_over_time(image, place) if image.is_video else {}),
            }
            for place, stage in enumerate(image.stages)
        ],
        **(_of_frames(image) if image.is_video else {}),
    }


def _of_frames(image: ImageReport) -> dict[str, Any]:
    covered = image.coverage_per_frame()
    return {
        "frames": image.frames,
        "tokens_per_frame": image.tokens_per_frame,
        "coverage_per_frame": None if covered is None else [round(share, 4) for share in covered.tolist()],
    }


def _over_time(image: ImageReport, stage: int) -> dict[str, list[float]]:
    """The tokens that each frame of a video keeps, and their weight."""
    weights = image.weight_per_frame(stage).tolist()
    return {
        "kept_per_frame": image.kept_per_frame(stage).tolist(),
        "weight_per_frame": [round(weight, 4) for weight in weights],
    }
