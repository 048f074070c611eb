"""LLaVA-NeXT with the CLIP text tower: instruction evidence over both views, anchors, and the slow reference."""

import pytest
import torch
from support.cases import FROZEN, first_of
from support.matrix.llava_next import TILE
from support.requests import greedy
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig

import covist
from covist.config import CovistConfig
from covist.formulas.evidence import instruction_distribution
from covist.tiny.text import build_caption_tokenizer

CASE = first_of("llava-next")
QUESTION = "{image}what color is this ?"


@pytest.fixture(scope="module")
def clip():
    tokenizer = build_caption_tokenizer()
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=20,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_factor=6.0,
    )
    vision = {**CASE.model.config.vision_config.to_dict(), "image_size": TILE}
    torch.manual_seed(1)
    model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision, projection_dim=16)).eval()
    return model, tokenizer


def test_instruction_evidence_is_laid_out_like_the_content_tokens(clip):
    inputs = CASE.ask(QUESTION)
    model, (clip_model, words) = CASE.model, clip
    with covist.compress(
        model, CASE.processor(), budget=12, clip=clip, instruction="what color is this ?", concentration=FROZEN
    ) as handle:
        greedy(model, inputs, 1)
    (image,) = handle.report.images

    ids = words("what color is this ?", return_tensors="pt").input_ids
    text = clip_model.text_projection(clip_model.text_model(ids).last_hidden_state)[0, 1:]
    tower = model.model.vision_tower
    hidden = tower(inputs.pixel_values[0], output_hidden_states=True).hidden_states[-2][:, 1:].flatten(0, 1)
    span = model.model.get_image_features(inputs.pixel_values, inputs.image_sizes).pooler_output[0]
    content = span[~(span == model.model.image_newline).all(-1)]
    sources = torch.cdist(content, model.model.multi_modal_projector(hidden)).argmin(-1)
    patches = clip_model.visual_projection(tower.post_layernorm(hidden[sources]))
    expected = instruction_distribution(text, patches, CovistConfig())
    torch.testing.assert_close(image.stages[0].maps["instruction"], expected, atol=1e-6, rtol=1e-4)


def test_generation_equals_the_slow_reference(clip, strategy, compress):
    inputs = CASE.ask(QUESTION)
    handle = compress(CASE, budget=12, strategy=strategy, clip=clip, instruction="what color is this ?")
    output = greedy(CASE.model, inputs, 2)
    handle.remove()
    slow = CASE.slow(CASE.model, strategy == "pro")
    expected = slow.logits(inputs["input_ids"][0].tolist(), inputs, list(handle.report.images))
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)
