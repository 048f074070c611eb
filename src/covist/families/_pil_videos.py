"""Video processing with Pillow, for machines without torchvision, which every video processor of transformers needs.

Each class stands in for one of them: it reads the same settings from the same files of a checkpoint, and produces the
same shapes and the same order of patches. Frames are resized by Pillow, as image processors do without torchvision.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import PILImageResampling, SizeDict
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.utils.constants import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from transformers.utils.hub import cached_file
from transformers.video_utils import make_batched_metadata, make_batched_videos

_Images: Any = PilBackend  # Any, because its signatures are for images
_QwenImages: Any = Qwen2VLImageProcessorPil
_SETTINGS = ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json")
"""Files in which transformers looks for the settings of a video processor, in this order."""


class PilVideos(_Images):
    """Videos as [videos, frames, 3, h, w]. The caller has already chosen the frames: all of them are used."""

    inputs: ClassVar[dict[str, str]] = {"pixel_values": "pixel_values_videos"}
    """Name of an image processor's output -> name of the video processor's."""
    num_frames = fps = None  # read by chat templates

    @classmethod
    def of(cls, checkpoint: str, images: Any) -> PilVideos:
        """With a checkpoint's (folder or hub id) settings for videos, or for images if it has none for videos."""
        stored = _stored(checkpoint) or images.to_dict()
        known = {*cls.valid_kwargs.__annotations__, "cap_pixels_per_frame", "max_video_tokens"}
        return cls(**{name: value for name, value in stored.items() if name in known and value is not None})

    def __call__(
        self,
        videos: Any,
        video_metadata: Any = None,
        return_metadata: bool = False,
        return_tensors: str | None = None,
        **options: Any,
    ) -> BatchFeature:
        batch: Any = make_batched_videos(videos)
        parts = [self.preprocess(list(frames), return_tensors="np") for frames in batch]
        data: dict[str, Any] = {
            name: self.joined([part[source] for part in parts]) for source, name in self.inputs.items()
        }
        made = BatchFeature(data, tensor_type=return_tensors)
        if return_metadata:
            made["video_metadata"] = make_batched_metadata(batch, video_metadata=video_metadata)
        return made

    def joined(self, values: Sequence[np.ndarray]) -> Any:
        """Join the outputs of all videos."""
        return np.stack(values) if len({value.shape for value in values}) == 1 else list(values)


class LlavaOnevisionVideos(PilVideos):
    """Stands in for `LlavaOnevisionVideoProcessor`."""

    resample = PILImageResampling.BICUBIC
    image_mean, image_std = OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
    size: ClassVar[dict[str, int]] = {"height": 384, "width": 384}
    default_to_square = False
    do_resize = do_rescale = do_normalize = do_convert_rgb = True


class LlavaNextVideos(PilVideos):
    """Stands in for `LlavaNextVideoVideoProcessor`."""

    resample = PILImageResampling.BICUBIC
    image_mean, image_std = OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
    size: ClassVar[dict[str, int]] = {"shortest_edge": 224}
    crop_size: ClassVar[dict[str, int]] = {"height": 224, "width": 224}
    default_to_square = False
    do_resize = do_center_crop = do_rescale = do_normalize = do_convert_rgb = True


class Qwen2Videos(PilVideos, _QwenImages):
    """Stands in for `Qwen2VLVideoProcessor`: successive frames share a patch in time; the last is repeated to fit."""

    inputs: ClassVar[dict[str, str]] = {"pixel_values": "pixel_values_videos", "image_grid_thw": "video_grid_thw"}
    size: ClassVar[dict[str, int]] = {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}
    cap_pixels_per_frame: bool | None = None
    max_video_tokens = 128_000

    def __init__(
        self, cap_pixels_per_frame: bool | None = None, max_video_tokens: int | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.cap_pixels_per_frame = cap_pixels_per_frame
        self.max_video_tokens = max_video_tokens or self.max_video_tokens

    def joined(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(values)

    def frame_size(self, frames: int, height: int, width: int, size: Any, factor: int, moments: int) -> tuple[int, int]:
        """(height, width) of the resized frames; `moments` frames share a patch, `factor` pixels a token."""
        limit = size.longest_edge
        if self.cap_pixels_per_frame:
            everything = int(self.max_video_tokens * factor**2 * 0.9)
            limit = max(min(limit, everything * moments // frames), int(size.shortest_edge * 1.05))
        return smart_resize(height, width, factor, min_pixels=size.shortest_edge, max_pixels=limit)

    def _preprocess(
        self,
        images: list[np.ndarray],
        do_resize: bool,
        size: Any,
        resample: Any,
        do_rescale: bool,
        rescale_factor: float,
        do_normalize: bool,
        image_mean: Any,
        image_std: Any,
        patch_size: int,
        temporal_patch_size: int,
        merge_size: int,
        return_tensors: Any,
        **options: Any,
    ) -> BatchFeature:
        """The frames of one video [3, h, w] each -> patches [patches, 3 * time * p * p] and their grid [1, 3]."""
        frames = images + images[-1:] * (-len(images) % temporal_patch_size)
        if do_resize:
            height, width = images[0].shape[-2:]
            factor = patch_size * merge_size
            height, width = self.frame_size(len(images), height, width, size, factor, temporal_patch_size)
            wanted = SizeDict(height=height, width=width)
            frames = [_Images.resize(self, frame, wanted, resample) for frame in frames]
        if do_rescale:
            frames = [self.rescale(frame, rescale_factor) for frame in frames]
        if do_normalize:
            frames = [self.normalize(frame, image_mean, image_std) for frame in frames]
        patches, grid = _patches(np.stack(frames).astype(np.float32), patch_size, temporal_patch_size, merge_size)
        return BatchFeature({"pixel_values": patches, "image_grid_thw": grid}, tensor_type=return_tensors)


class Qwen3Videos(Qwen2Videos):
    """Stands in for `Qwen3VLVideoProcessor`, whose limits apply to the pixels of all frames together."""

    size: ClassVar[dict[str, int]] = {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}
    image_mean, image_std = IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD
    patch_size = 16
    max_video_tokens = 768

    def frame_size(self, frames: int, height: int, width: int, size: Any, factor: int, moments: int) -> tuple[int, int]:
        limit = size.longest_edge
        if self.cap_pixels_per_frame:
            most = self.max_video_tokens * factor**2
            limit = frames * max(min(most, limit // frames), int(size.shortest_edge * 1.05))
        return _resize_together(frames, height, width, factor, moments, size.shortest_edge, limit)


def _resize_together(
    frames: int, height: int, width: int, factor: int, moments: int, fewest: int, most: int
) -> tuple[int, int]:
    """(height, width) in multiples of `factor` for which all frames together have `fewest` to `most` pixels."""
    if frames < moments:
        raise ValueError(f"a video needs at least {moments} frames, got {frames}")
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) / min(height, width) > 200:
        raise ValueError(f"the longer side may be at most 200 times the shorter one, got {width} x {height}")
    rounded = [round(side / factor) * factor for side in (height, width)]
    pixels = round(frames / moments) * moments * rounded[0] * rounded[1]
    if pixels > most:
        shrink = math.sqrt(frames * height * width / most)
        rounded = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif pixels < fewest:
        grow = math.sqrt(fewest / (frames * height * width))
        rounded = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return rounded[0], rounded[1]


def _patches(frames: np.ndarray, patch: int, moments: int, merge: int) -> tuple[np.ndarray, np.ndarray]:
    """Frames [frames, 3, h, w] -> patches [patches, 3 * moments * p * p], token by token, and the grid [[t, h, w]]."""
    time, rows, columns = len(frames) // moments, frames.shape[2] // patch, frames.shape[3] // patch
    cells = frames.reshape(time, moments, 3, rows // merge, merge, patch, columns // merge, merge, patch)
    ordered = cells.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)  # [t, rows, columns, merge, merge, 3, moments, p, p]
    return ordered.reshape(time * rows * columns, -1), np.array([[time, rows, columns]])


def _stored(checkpoint: str) -> dict[str, Any] | None:
    """The settings that a checkpoint has for videos; the image settings if it has one file for both."""
    for name in _SETTINGS:
        found = cached_file(checkpoint, name, _raise_exceptions_for_missing_entries=False)
        settings = {} if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
        if name == _SETTINGS[0]:
            settings = settings.get("video_processor")
        if settings:
            return settings
    return None
