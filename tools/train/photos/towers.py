"""The frozen vision tower of the photograph bed: CLIP's or DINOv2's, both of which have a class token."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, CLIPVisionModel, Dinov2Model, PreTrainedModel
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from covist.errors import CovistError

LAYER = -2  # as LLaVA: the last layer but one
SIDE = 14  # patches of an image's side, unless a size in pixels is given
_CLASSES = {"clip": CLIPVisionModel, "clip_vision_model": CLIPVisionModel, "dinov2": Dinov2Model}
_COLOURS = {
    CLIPVisionModel: (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD),
    Dinov2Model: (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD),
}


def load_tower(folder: Path | str, size: int | None = None) -> PreTrainedModel:
    """A tower with its position table resized, so that it takes images of `size` pixels without further options."""
    kind = AutoConfig.from_pretrained(folder).model_type
    if kind not in _CLASSES:
        raise CovistError(f"{folder} holds a {kind}; the tower must be CLIP's or DINOv2's")
    tower = _CLASSES[kind].from_pretrained(folder).eval().requires_grad_(False)
    size = size or SIDE * tower.config.patch_size
    if size != tower.config.image_size:
        _resize_positions(tower, size)
    return tower


def _resize_positions(tower: PreTrainedModel, size: int) -> None:
    embeddings, patches = tower.embeddings, (size // tower.config.patch_size) ** 2
    some = torch.zeros(1, patches + 1, tower.config.hidden_size)  # the table depends on their number alone
    table = embeddings.interpolate_pos_encoding(some, size, size)
    if isinstance(tower, Dinov2Model):
        embeddings.position_embeddings = nn.Parameter(table.clone(), requires_grad=False)
    else:
        embeddings.position_embedding = nn.Embedding.from_pretrained(table[0].clone())
        embeddings.position_ids = torch.arange(patches + 1)[None]
        embeddings.image_size, embeddings.num_patches, embeddings.num_positions = size, patches, patches + 1
    tower.config.image_size = size


def drop_layers_after_the_one_read(tower: PreTrainedModel) -> None:
    """What the last of the remaining layers returns is what LLaVA reads."""
    name = "layer" if isinstance(tower, Dinov2Model) else "layers"
    setattr(tower.encoder, name, getattr(tower.encoder, name)[: LAYER + 1])


def image_processor(tower: PreTrainedModel) -> CLIPImageProcessorPil:
    """The whole image at one size, with the tower's own normalisation of colours."""
    side = dict.fromkeys(("height", "width"), tower.config.image_size)
    mean, std = _COLOURS[type(tower)]
    return CLIPImageProcessorPil(size=side, crop_size=side, do_center_crop=False, image_mean=mean, image_std=std)
