"""The recipe of the hybrid decoder: its packed passes equal separate ones, and it starts from the embedded model."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import LlavaForConditionalGeneration

from covist.tiny import Size, prompt_for, questions_for, sample_scene, scene_image
from covist.tiny.model import build_clip, build_llava
from covist.tiny.store import load
from covist.tiny.text import build_processor
from train.hybrid.model import build_hybrid
from train.hybrid.train import HybridTrainer
from train.tiny.data import SceneBank
from train.tiny.decoder import DecoderPhase
from train.tiny.packing import pack
from train.tiny.train import export

SMALL = Size(width=64, vision_layers=2, text_layers=1, decoder_layers=4, decoder_mlp=96)
SAMPLED = DecoderPhase("sampled", 1.0, images=2, sampled=24)


@pytest.fixture
def trainer(tmp_path):
    model = build_hybrid(build_llava(SMALL), SMALL)
    for name, parameter in model.model.language_model.named_parameters():
        if "linear_attn" in name and parameter.ndim == 2:  # the default of 0.02 would hide errors
            torch.nn.init.normal_(parameter, std=0.08)
    return HybridTrainer(model, SceneBank(tmp_path, 0, 2), tmp_path, seed=0)


def test_two_of_three_layers_are_linear_and_the_rest_is_inherited():
    embedded = build_llava(SMALL)
    model = build_hybrid(embedded, SMALL)
    layers, trained = model.model.language_model.layers, embedded.model.language_model.layers
    assert [layer.block_type for layer in layers] == ["linear_attention"] * 2 + ["full_attention", "linear_attention"]
    hidden = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(0))
    for layer, source in zip(layers, trained, strict=True):
        assert_close(layer.mlp(layer.input_layernorm(hidden)), source.mlp(source.input_layernorm(hidden)))
    queries = layers[2].self_attn.q_proj(hidden).unflatten(-1, (4, 2, 16))[..., 0, :].flatten(2)
    assert_close(queries, trained[2].self_attn.q_proj(hidden))


def test_packed_questions_get_the_logits_they_would_get_alone(trainer, tmp_path):
    scenes = [sample_scene(0), sample_scene(1)]
    asked = [questions_for(scenes[0]), questions_for(scenes[1])[:2]]  # rows of different lengths
    packed, places = pack(asked), torch.arange(576).expand(2, -1)
    with torch.no_grad():
        logits = trainer.answer_logits(trainer.cache(np.arange(2)), places, packed)[0]
    export(trainer.model, trainer, build_clip(SMALL), tmp_path)
    plain, processor = load(tmp_path / "export")[0], build_processor()
    assert isinstance(plain, LlavaForConditionalGeneration)
    for row, scene in enumerate(scenes):
        answers = packed.answered[row].nonzero()[:, 0]
        for place, item in zip(answers, asked[row], strict=True):
            inputs = processor(images=scene_image(scene), text=prompt_for(item.question), return_tensors="pt")
            with torch.no_grad():
                # weights and features are stored in half precision
                assert_close(logits[row, place], plain(**inputs).logits[0, -1], atol=2e-2, rtol=2e-2)


def test_a_step_teaches_every_part_of_the_linear_layers(trainer):
    loss, _ = trainer.step(SAMPLED, 0)
    loss.backward()
    for layer in trainer.decoder.layers[:2]:
        for name, parameter in layer.linear_attn.named_parameters():
            assert parameter.grad.abs().max() > 0, name
