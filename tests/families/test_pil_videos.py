"""Stand-ins for video processors, beside the formulas of transformers' own, whose modules need torchvision."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.families import smooth_image, tokenizer
from support.transformers_source import function_from
from transformers import LlavaNextVideoProcessor, LlavaOnevisionProcessor
from transformers.image_utils import SizeDict
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil as NextImages
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil as OnevisionImages,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families._pil_videos import LlavaNextVideos, LlavaOnevisionVideos, Qwen2Videos, Qwen3Videos
from covist.families.processors import image_only

QWEN2, QWEN3 = "models.qwen2_vl.video_processing_qwen2_vl", "models.qwen3_vl.video_processing_qwen3_vl"


class Resized:
    """Whatever a processor's `resize` asks its base class for."""

    def resize(self, image, size, resample):
        return size.height, size.width


def official_size(module, processor, frames, height, width, size, factor):
    """(height, width) that transformers' own `resize` would give the frames of a video."""
    names = {"SizeDict": SizeDict, "super": Resized, "smart_resize": function_from(module, "smart_resize")}
    name = "Qwen2VLVideoProcessor.resize" if module is QWEN2 else "Qwen3VLVideoProcessor.resize"
    return function_from(module, name, **names)(
        SimpleNamespace(max_video_tokens=processor.max_video_tokens),
        torch.empty(1, frames, 3, height, width, device="meta"),
        size,
        resample=None,
        factor=factor,
        temporal_factor=2,
        cap_pixels_per_frame=processor.cap_pixels_per_frame,
    )


def film(frames, width=90, height=70):
    return [smooth_image(width, height, seed) for seed in range(frames)]


@pytest.mark.parametrize(("module", "videos", "factor"), [(QWEN2, Qwen2Videos, 28), (QWEN3, Qwen3Videos, 32)])
@given(
    frames=st.integers(2, 900),
    height=st.integers(8, 1500),
    width=st.integers(8, 1500),
    capped=st.booleans(),
    limits=st.sampled_from([(128, 768), (4, 24_576)]),
)
def test_frames_get_the_size_of_transformers(module, videos, factor, frames, height, width, capped, limits):
    size = SizeDict(shortest_edge=limits[0] * factor**2, longest_edge=limits[1] * factor**2)
    processor = videos(cap_pixels_per_frame=capped)
    ours = processor.frame_size(frames, height, width, size, factor, moments=2)
    assert tuple(ours) == official_size(module, processor, frames, height, width, size, factor)


@pytest.mark.parametrize("module", [QWEN2, QWEN3])
@pytest.mark.parametrize("frames", [2, 5])
def test_patches_stand_in_the_order_of_transformers(module, frames):
    """Without resizing and normalising nothing but the order is left."""
    videos = (Qwen2Videos if module is QWEN2 else Qwen3Videos)(do_resize=False, do_normalize=False, do_rescale=False)
    side = 2 * videos.patch_size
    shown = film(frames, 3 * side, 2 * side)
    made = videos([shown], return_tensors="pt")
    name = "Qwen2VLVideoProcessor.patchify" if module is QWEN2 else "Qwen3VLVideoProcessor.patchify"
    stacked = torch.from_numpy(np.stack([np.asarray(one) for one in shown])).permute(0, 3, 1, 2)[None].contiguous()
    patches, *grid = function_from(module, name)(None, stacked, videos.patch_size, 2, 2)
    assert torch.equal(made["pixel_values_videos"], patches[0].float())
    assert made["video_grid_thw"].tolist() == [grid]


@pytest.mark.parametrize("videos", [Qwen2Videos, Qwen3Videos])
def test_a_still_video_has_the_patches_of_an_image(videos):
    """Both patches in time hold the same frame, as those of an image do, resized by the same filter."""
    one = smooth_image(90, 70)
    settings = {"size": {"shortest_edge": 56 * 56, "longest_edge": 10**6}, "patch_size": 14}
    made = videos(image_mean=[0.4] * 3, image_std=[0.3] * 3, **settings)([[one] * 4], return_tensors="pt")
    images = Qwen2VLImageProcessorPil(image_mean=[0.4] * 3, image_std=[0.3] * 3, **settings)
    image = images(images=[one], return_tensors="pt")
    moments = made["pixel_values_videos"].unflatten(0, (2, -1))
    torch.testing.assert_close(moments, image["pixel_values"].expand(2, -1, -1), atol=1e-6, rtol=1e-6)
    assert made["video_grid_thw"][:, 1:].tolist() == image["image_grid_thw"][:, 1:].tolist()


def test_an_odd_last_frame_is_repeated():
    settings = {"do_rescale": False, "do_normalize": False}
    five, six = (Qwen2Videos(**settings)([shown], return_tensors="pt") for shown in (film(5), [*film(5), film(5)[4]]))
    assert torch.equal(five["pixel_values_videos"], six["pixel_values_videos"])
    assert five["video_grid_thw"].tolist() == six["video_grid_thw"].tolist()


def test_videos_of_a_batch_follow_each_other():
    both = Qwen2Videos()([film(2), film(4, 60, 60)], return_tensors="pt")
    alone = [Qwen2Videos()([shown], return_tensors="pt") for shown in (film(2), film(4, 60, 60))]
    for name, values in both.items():
        assert torch.equal(values, torch.cat([one[name] for one in alone]))


@pytest.mark.parametrize(("videos", "side"), [(LlavaOnevisionVideos, 384), (LlavaNextVideos, 224)])
def test_frames_of_llava_are_squares(videos, side):
    made = videos()([film(3)], return_tensors="pt")
    assert made["pixel_values_videos"].shape == (1, 3, 3, side, side)


@pytest.mark.parametrize(
    ("processor_class", "images", "settings", "videos", "tokens"),
    [
        (LlavaOnevisionProcessor, OnevisionImages, {"num_image_tokens": 729}, LlavaOnevisionVideos, 197),
        (LlavaNextVideoProcessor, NextImages, {"patch_size": 14}, LlavaNextVideos, 64),
    ],
    ids=["llava-onevision", "llava-next-video"],
)
def test_prompts_of_llava_get_a_placeholder_per_pooled_patch(processor_class, images, settings, videos, tokens):
    """OneVision makes 14 x 14 of 27 x 27 patches and adds a newline; NeXT-Video makes 8 x 8 of 16 x 16."""
    words = tokenizer()
    words.add_tokens(["<video>"], special_tokens=True)
    processor = image_only(processor_class)(image_processor=images(), tokenizer=words, **settings)
    processor.video_processor = videos()
    made = processor(text=[processor.video_token], videos=[film(1)], return_text_replacement_offsets=True)
    ((written,),) = made["text_replacement_offsets"]
    assert written["replacement"] == processor.video_token * tokens


def test_llava_next_crops_the_middle_of_a_frame():
    frame = Image.new("RGB", (300, 100), "red")
    frame.paste("blue", (100, 0, 200, 100))
    plain = {"do_rescale": False, "do_normalize": False}
    (seen,) = LlavaNextVideos(**plain)([[frame] * 2], return_tensors="pt")["pixel_values_videos"][0, :1]
    assert seen[:, 112, 112].tolist() == [0, 0, 255] and seen[0, 112, 8:-8].max() < 40


def test_settings_come_from_the_files_of_a_checkpoint(tmp_path):
    images = Qwen2VLImageProcessorPil(patch_size=10)
    assert Qwen2Videos.of(str(tmp_path), images).patch_size == 10  # nothing stored: as its images
    stored = {"video_processor_type": "Qwen2VLVideoProcessor", "patch_size": 12, "min_pixels": 7, "max_pixels": 9}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**stored, "patch_size": 11}))
    assert Qwen2Videos.of(str(tmp_path), images).patch_size == 11
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(stored))
    found = Qwen2Videos.of(str(tmp_path), images)
    assert (found.patch_size, found.size["shortest_edge"], found.size["longest_edge"]) == (12, 7, 9)
    nested = {"video_processor": {**stored, "patch_size": 13, "cap_pixels_per_frame": True}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    found = Qwen2Videos.of(str(tmp_path), images)
    assert (found.patch_size, found.cap_pixels_per_frame) == (13, True)
