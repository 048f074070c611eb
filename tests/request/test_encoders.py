"""The encoder of a checkpoint without its decoder computes what the whole model computes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.cases import first_of

from covist.errors import CovistError
from covist.families.registry import family_for
from covist.loading import Loading
from covist.request.encoders import load_encoder


def encoded(model, inputs) -> torch.Tensor:
    given = {name: inputs[name] for name in ("pixel_values", "image_sizes", "image_grid_thw") if name in inputs}
    with torch.no_grad():
        return torch.cat([*family_for(model).base.get_image_features(**given, return_dict=True).pooler_output])


@pytest.mark.parametrize("family", ["llava-next", "qwen3-vl"])
def test_it_makes_the_same_embeddings_and_has_no_other_weights(tmp_path, family):
    case = first_of(family)
    case.model.save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), Loading(), torch.float32)
    inputs = case.ask("{image} what is there")
    assert torch.equal(encoded(encoder, inputs), encoded(case.model, inputs))
    assert sum(p.numel() for p in family_for(encoder).decoder.parameters()) <= case.model.config.text_config.hidden_size
    assert len(family_for(encoder).decoder.layers) == len(family_for(case.model).decoder.layers)


def test_random_weights_need_no_file_of_them(tmp_path):
    case = first_of("qwen2.5-vl")
    case.model.config.save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), Loading(), torch.bfloat16, random=True)
    assert encoder.dtype == torch.bfloat16


def test_an_encoder_that_is_stored_in_another_form_is_refused(tmp_path):
    case = first_of("llava-1.5")
    case.model.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = {name: one for name, one in load_file(file).items() if "projector.linear_1.weight" not in name}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CovistError, match="cannot be read without its decoder: no .*linear_1.weight"):
        load_encoder(str(tmp_path), Loading(), torch.float32)
