"""Step 1: what the frozen tower says about every image, computed once and kept on disk.

    python -m train.photos.features --data DIR --tower CLIP_FOLDER --out features

One file per 100 images, [100, tokens, width] in fp16; a second call computes only the files that are missing. The
first development images come first, for the loss that training logs, then the training images in an order that is
random but fixed, so that training can begin before all of them are there. Test images are never read here.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import CLIPVisionModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from covist.eval.photos.data import DEVELOPMENT, TRAIN, Photo, read_photos

SHARD = 100
LAYER = -2  # as LLaVA: the last layer but one
BATCH = 10


def image_processor(size: int) -> CLIPImageProcessorPil:
    """The whole image at one size, with CLIP's own normalisation."""
    side = {"height": size, "width": size}
    return CLIPImageProcessorPil(size=side, crop_size=side, do_center_crop=False)


def load_tower(folder: Path | str, size: int) -> CLIPVisionModel:
    """CLIP's tower with its position table resized, so that it takes images of `size` without further options."""
    tower = CLIPVisionModel.from_pretrained(folder).eval().requires_grad_(False)
    if size != tower.config.image_size:
        embeddings, patches = tower.embeddings, (size // tower.config.patch_size) ** 2
        table = embeddings.interpolate_pos_encoding(torch.zeros(1, patches + 1, embeddings.embed_dim), size, size)[0]
        embeddings.position_embedding = torch.nn.Embedding.from_pretrained(table.clone())
        embeddings.position_ids = torch.arange(patches + 1)[None]
        embeddings.image_size = tower.config.image_size = size
        embeddings.num_patches, embeddings.num_positions = patches, patches + 1
    return tower


class TowerFeatures:
    """Patch features of images, [n, tokens, width].

    Products in bfloat16 take half the time of float32 and move the features by 6 %, which is noise to training; the
    evaluation runs the tower in float32.
    """

    def __init__(self, tower: CLIPVisionModel, size: int):
        self.tower, self.processor = tower, image_processor(size)
        # Layers after the one that is read are never computed.
        self.tower.encoder.layers = self.tower.encoder.layers[: LAYER + 1]

    @torch.inference_mode()
    def __call__(self, photos: list[Photo]) -> np.ndarray:
        images = [Image.open(photo.path).convert("RGB") for photo in photos]
        pixels = self.processor(images, return_tensors="pt").pixel_values
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.tower(pixels, output_hidden_states=True).hidden_states[-1]
        return hidden[:, 1:].half().numpy()  # the class token is left out


def shards(photos: list[Photo]) -> list[list[Photo]]:
    return [photos[start : start + SHARD] for start in range(0, len(photos), SHARD)]


def shard_path(out: Path, split: str, number: int) -> Path:
    return out / f"{split}-{number:04d}.npy"


def compute(tower: TowerFeatures, data: Path, out: Path) -> None:
    for split, most in ((DEVELOPMENT, 1), (TRAIN, None)):
        for number, photos in enumerate(shards(read_photos(data, split))[:most]):
            path = shard_path(out, split, number)
            if path.exists():
                continue
            parts = [tower(photos[start : start + BATCH]) for start in range(0, len(photos), BATCH)]
            unfinished = path.with_suffix(".part.npy")
            np.save(unfinished, np.concatenate(parts))
            os.replace(unfinished, path)  # a file is there as a whole or not at all
            print(path.name, flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.photos.features", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with captions.txt and images")
    parser.add_argument("--tower", type=Path, required=True, help="folder of a CLIP vision tower")
    parser.add_argument("--out", type=Path, required=True, help="folder for the features")
    parser.add_argument("--size", type=int, default=224, help="pixels of an image's side")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    compute(TowerFeatures(load_tower(options.tower, options.size), options.size), options.data, options.out)


if __name__ == "__main__":
    main()
