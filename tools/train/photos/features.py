"""Step 1: what the frozen tower says about every image, computed once and kept on disk.

    python -m train.photos.features --data DIR --tower FOLDER --out features

One file per image, [tokens, width] in fp16; a second call computes only what is missing. The first development images
come first, for the losses that training logs, then the training images in an order that is random but fixed, so that
training can begin before all of them are there. Test images are never read here.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedModel

from covist.eval.photos.data import DEVELOPMENT, TRAIN
from train.photos.lessons import Lesson, read_lessons
from train.photos.towers import drop_layers_after_the_one_read, image_processor, load_tower

DEVELOPED = 100  # development images
BATCH = 10


class TowerFeatures:
    """Patch features of images, [n, tokens, width].

    Products in bfloat16 take half the time of float32 and move the features by 6 %, which is noise to training; the
    evaluation runs the tower in float32.
    """

    def __init__(self, tower: PreTrainedModel):
        self.tower, self.processor = tower, image_processor(tower)
        drop_layers_after_the_one_read(tower)

    @torch.inference_mode()
    def __call__(self, photos: list[Lesson]) -> np.ndarray:
        images = [Image.open(photo.path).convert("RGB") for photo in photos]
        pixels = self.processor(images, return_tensors="pt").pixel_values
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.tower(pixels, output_hidden_states=True).hidden_states[-1]
        return hidden[:, 1:].half().numpy()  # the class token is left out


def feature_path(folder: Path, lesson: Lesson) -> Path:
    return folder / f"{lesson.path.name}.npy"


def compute(tower: TowerFeatures, data: Path, out: Path) -> None:
    wanted = [*read_lessons(data, DEVELOPMENT)[:DEVELOPED], *read_lessons(data, TRAIN)]
    missing = [lesson for lesson in wanted if not feature_path(out, lesson).exists()]
    for start in range(0, len(missing), BATCH):
        batch = missing[start : start + BATCH]
        for lesson, features in zip(batch, tower(batch), strict=True):
            unfinished = out / "unfinished.npy"
            np.save(unfinished, features)
            os.replace(unfinished, feature_path(out, lesson))  # a file is there as a whole or not at all
        print(f"{start + len(batch)} of {len(missing)} images", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.photos.features", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with captions.txt and images")
    parser.add_argument("--tower", type=Path, required=True, help="folder of the vision tower of CLIP or DINOv2")
    parser.add_argument("--out", type=Path, required=True, help="folder for the features")
    parser.add_argument("--size", type=int, help="pixels of an image's side; by default those of 14 patches")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    compute(TowerFeatures(load_tower(options.tower, options.size)), options.data, options.out)


if __name__ == "__main__":
    main()
