"""Prompts with videos for the families that take them, and the slow reference for their frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from covist.families._pil_videos import Qwen2Videos, Qwen3Videos
from covist.families.registry import family_for
from covist.families.video import segments
from covist.request.loading import LoadedModel
from support.captures import captured
from support.case import Case
from support.cases import CASES, first_of
from support.families import VOCABULARY, smooth_image
from support.matrix.llava_onevision import bilinear
from support.slow_llava import affinity

CASES_WITH_VIDEO = tuple(case for case in CASES if family_for(case.model).video == "compressed")
STAND_INS = {"qwen2-vl": Qwen2Videos, "qwen2.5-vl": Qwen2Videos, "qwen3-vl": Qwen3Videos}
"""Processors of videos that work without torchvision."""
TEXT, IMAGE, VIDEO = 0, 1, 2
QUESTION = "what is the colour of this ?"


class Inputs(dict):
    """Arguments of a model, which the slow references read as attributes."""

    __getattr__ = dict.__getitem__


def with_videos(family: str) -> LoadedModel:
    """A small model whose processor stands as `load_processor` leaves it."""
    case = first_of(family)
    processor = case.chatting_processor()
    stand_in = STAND_INS[family]
    size = {"shortest_edge": 56 * 56, "longest_edge": 10**6}
    processor.video_processor = stand_in(size=size, patch_size=processor.image_processor.patch_size)
    return LoadedModel(family, case.model, processor)


def ask_about(case: Case, *parts: Any, question: str = QUESTION) -> dict[str, Tensor]:
    """Inputs of one prompt: an image for "image", a video for a number of frames, words for any other text."""
    return (_ask_llava if "llava" in case.name else _ask_qwen)(case, parts, question)


def frame_tokens(case: Case) -> int:
    """Tokens of one frame."""
    (signals,) = captured(case.model, ask_about(case, 1))
    return signals.grid.size


def _ask_llava(case: Case, parts: tuple[Any, ...], question: str) -> Inputs:
    """Videos of a prompt have the same number of frames, which the shorter ones repeat their last frame for."""
    images = [smooth_image(90, 100, seed=10 * number) for number, part in enumerate(parts) if part == "image"]
    longest = max((part for part in parts if isinstance(part, int)), default=0)
    words = {"image": "{image}", **{part: "<video>" for part in parts if isinstance(part, int)}}
    text = "".join(words.get(part, part) for part in parts) + question
    inputs = case.encode([case.turn.replace("{}", text)], images)
    side, films = case.model.config.vision_config.image_size, []
    for number, part in enumerate(parts):
        if isinstance(part, int):
            frames = [smooth_image(side, side, seed=10 * number + min(frame, part - 1)) for frame in range(longest)]
            films.append(torch.stack([torch.from_numpy(np.asarray(frame) / 128 - 1).float() for frame in frames]))
    if films:
        inputs["pixel_values_videos"] = torch.stack(films).permute(0, 1, 4, 2, 3)
        video = case.model.config.video_token_id
        spans = case.model.get_video_features(inputs["pixel_values_videos"], return_dict=True).pooler_output
        length = len(spans[0].flatten(0, -2))  # older releases give frame by frame
        ids = [token for one in inputs["input_ids"][0].tolist() for token in [one] * (length if one == video else 1)]
        inputs["input_ids"] = torch.tensor([ids])
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs.pop("mm_token_type_ids", None)
    return Inputs(inputs)


def _ask_qwen(case: Case, parts: tuple[Any, ...], question: str) -> Inputs:
    ids, types, pixels, grids = [], [], {IMAGE: [], VIDEO: []}, {IMAGE: [], VIDEO: []}

    def say(text: str) -> None:
        words = case.processor().tokenizer(text, add_special_tokens=False).input_ids
        ids.extend(words)
        types.extend([TEXT] * len(words))

    def show(frames: int, seed: int, kind: int) -> None:
        images = [smooth_image(90 + 30 * kind, 100, seed=seed + frame) for frame in range(frames)]
        seen = case.processor().image_processor(images=images, return_tensors="pt")
        (_, height, width), tokens = seen["image_grid_thw"][0].tolist(), int(seen["image_grid_thw"][0].prod()) // 4
        pixels[kind].append(seen["pixel_values"])
        grids[kind].append([frames, height, width])
        timed = kind == VIDEO and "qwen3" in case.name
        token = VOCABULARY["<|video_pad|>" if kind == VIDEO else "<|image_pad|>"]
        for _ in range(frames if timed else 1):
            say("that" * timed + "<|vision_start|>")
            run = tokens if timed else frames * tokens
            ids.extend([token] * run)
            types.extend([kind] * run)
            say("<|vision_end|>")

    say("<|im_start|>user")
    for number, part in enumerate(parts):
        if part == "image":
            show(1, 10 * number, IMAGE)
        elif isinstance(part, int):
            show(part, 10 * number, VIDEO)
        else:
            say(part)
    say(f"{question}<|im_end|><|im_start|>assistant")
    inputs = {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        "mm_token_type_ids": torch.tensor([types]),
    }
    for kind, pixel_name, grid_name in (
        (IMAGE, "pixel_values", "image_grid_thw"),
        (VIDEO, "pixel_values_videos", "video_grid_thw"),
    ):
        if grids[kind]:
            inputs[pixel_name], inputs[grid_name] = torch.cat(pixels[kind]), torch.tensor(grids[kind])
    return Inputs(inputs)


class _Frames:
    """Frames of a video as so many images, which is what the tower makes of them: none sees another."""

    def __init__(self, inputs: dict[str, Tensor], number: int):
        first = int(inputs["video_grid_thw"][:number].prod(-1).sum())
        frames, height, width = inputs["video_grid_thw"][number].tolist()
        self.image_grid_thw = torch.tensor([[1, height, width]] * frames)
        self.pixel_values = inputs["pixel_values_videos"][first : first + frames * height * width]


class _Images:
    def __init__(self, inputs: dict[str, Tensor]):
        self.image_grid_thw = inputs.get("image_grid_thw", torch.empty(0, 3, dtype=torch.long))
        self.pixel_values = inputs.get("pixel_values")


def slow_with_videos(case: Case) -> type:
    """The slow reference of a case for the inputs of `ask_about` whose images stand before its videos."""
    return (_slow_llava if "llava" in case.name else _slow_qwen)(case)


def _slow_llava(case: Case) -> type:
    """Frame by frame through the tower; patches are averaged or shrunk as arrays."""

    class Slow(case.slow):  # type: ignore[name-defined]
        @property
        def visual_tokens(self) -> tuple[int, ...]:
            return (self.model.config.image_token_id, self.model.config.video_token_id)

        def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
            encoded = super().encode(shown) if "pixel_values" in shown else []
            for pixels in shown.pixel_values_videos:
                frames = [self.frame(one) for one in pixels]
                ends = self.model.model.image_newline[None] if "onevision" in case.name else torch.empty(0, 32)
                for part in segments(len(frames), len(frames[0][1])):
                    keys, span = (torch.cat([frames[index][own] for index in part]) for own in (0, 1))
                    similarity = affinity(keys, span)
                    span = torch.cat([span, ends]) if part.stop == len(frames) else span
                    encoded.append((span, torch.arange(len(span)) < len(keys), similarity))
            return encoded

        def frame(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
            """Keys and embeddings of one frame's tokens."""
            base, with_class = self.model.model, "next" in case.name
            states = base.vision_tower(pixels[None], output_hidden_states=True).hidden_states
            layer = base.config.vision_feature_layer
            block = base.vision_tower.encoder.layers[layer]
            keys = block.self_attn.k_proj(block.layer_norm1(states[layer - 1]))[0, int(with_class) :]
            features = states[layer][0, int(with_class) :]
            side = int(len(keys) ** 0.5)
            grids = [part.view(side, side, -1) for part in (keys, features)]
            if with_class:
                keys, features = (
                    grid.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).mean((1, 3)).flatten(0, 1) for grid in grids
                )
                return keys, base.multi_modal_projector(features)
            half = (side + 1) // 2
            embeddings = base.multi_modal_projector(grids[1])
            return tuple(bilinear(grid, half, half).flatten(0, 1) for grid in (grids[0], embeddings))

    return Slow


def _slow_qwen(case: Case) -> type:

    class Slow(case.slow):  # type: ignore[name-defined]
        @property
        def visual_tokens(self) -> tuple[int, ...]:
            return (VOCABULARY["<|image_pad|>"], VOCABULARY["<|video_pad|>"])

        def positions(self, ids: list[int], shown: Any) -> np.ndarray:
            grids = {name: shown[name] for name in ("image_grid_thw", "video_grid_thw") if name in shown}
            prompt, _ = self.model.model.get_rope_index(shown["input_ids"], shown["mm_token_type_ids"], **grids)
            generated = prompt.max() + 1 + torch.arange(len(ids) - shown["input_ids"].shape[1])
            return torch.cat([prompt[:, 0].T, generated[:, None].expand(-1, 3)]).double().numpy()

        def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
            encoded = super().encode(_Images(shown))
            for number in range(len(shown["video_grid_thw"])):
                frames = self.keys_and_spans(_Frames(shown, number))
                for part in segments(len(frames), len(frames[0][1])):
                    keys, span = (torch.cat([frames[index][own] for index in part]) for own in (0, 1))
                    content = torch.ones(len(span), dtype=torch.bool)
                    encoded.append((span, content, affinity(keys, span)))
            return encoded

        def companions(self, shown: Any) -> list[dict[int, np.ndarray]]:
            found = super().companions(_Images(shown)) if "pixel_values" in shown else []
            for number in range(len(shown["video_grid_thw"])):
                frames = super().companions(_Frames(shown, number))
                if not frames:
                    return []
                for part in segments(len(frames), len(frames[0][1])):
                    found.append(
                        {layer: np.concatenate([frames[index][layer] for index in part]) for layer in frames[0]}
                    )
            return found

    return Slow
