"""The CLIP text tower: from a checkpoint or from a loaded pair, and without a second vision tower."""

import copy
import gc
import os

import pytest
import torch
from support.llava import ask, build_llava
from transformers import CLIPModel, CLIPVisionModel

from covist.errors import CovistError
from covist.families.text_tower import Home, TextTower

LONG = " ".join(["what color is this object ?"] * 40)


@pytest.fixture(scope="module", params=["safetensors", "bin"])
def directory(request, clip, tmp_path_factory):
    path = tmp_path_factory.mktemp("clip")
    model, tokenizer = clip
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if request.param == "bin":
        (path / "model.safetensors").unlink()
        torch.save(model.state_dict(), path / "pytorch_model.bin")
    return path


@pytest.mark.parametrize("text", ["what color is this ?", "", LONG], ids=["short", "empty", "long"])
def test_directory_and_loaded_pair_agree(clip, directory, text):
    from_directory, from_pair = TextTower.resolve(directory), TextTower.resolve(clip)
    torch.testing.assert_close(from_directory.encode(text), from_pair.encode(text))
    patches = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(from_directory.project_patches(patches), from_pair.project_patches(patches))


def test_tokens_are_those_of_clip(clip):
    """BOS is dropped, EOS is last, and the features are CLIP's own."""
    model, tokenizer = clip
    features = TextTower.resolve(clip).encode("what color ?")
    inputs = tokenizer("what color ?", return_tensors="pt")
    assert inputs.input_ids[0, -1] == tokenizer.eos_token_id and len(features) == inputs.input_ids.shape[1] - 1
    expected = model.get_text_features(input_ids=inputs.input_ids)
    expected = expected if isinstance(expected, torch.Tensor) else expected.pooler_output
    torch.testing.assert_close(features[-1], expected[0])


def test_long_text_is_cut_to_the_context_and_keeps_its_end(clip):
    tower = TextTower.resolve(clip)
    features = tower.encode(LONG)
    limit = min(77, clip[0].config.text_config.max_position_embeddings)
    assert len(features) == limit - 1
    assert features.isfinite().all()


def test_segments_of_a_long_text_reach_its_end(clip):
    tower = TextTower.resolve(clip)
    short = "what color is this ?"
    torch.testing.assert_close(tower.encode_segments(short), tower.encode(short)[-1:])
    words = len(clip[1](LONG, add_special_tokens=False).input_ids)
    fit = min(77, clip[0].config.text_config.max_position_embeddings) - 2
    features = tower.encode_segments(LONG)
    assert len(features) == -(-words // fit) > 1
    torch.testing.assert_close(features[0], tower.encode(LONG)[-1])
    assert not torch.equal(features[-1], tower.encode_segments(LONG + " left")[-1])


@pytest.mark.parametrize("text", ["what color is this ?", LONG], ids=["short", "long"])
def test_padding_fills_the_context_and_changes_nothing_before_it(clip, text):
    tower = TextTower.resolve(clip)
    context = min(77, clip[0].config.text_config.max_position_embeddings)
    padded = tower.encode_padded(text)
    pooled = tower.encode_segments(text)
    assert padded.shape == (len(pooled), context, pooled.shape[1])
    first = tower.encode(text)
    torch.testing.assert_close(padded[0, 1 : 1 + len(first)], first)
    padding = padded[-1, -1]
    assert padding.isfinite().all() and not torch.equal(padding, padded[-1, 0])


def vision_towers():
    gc.collect()
    return sum(issubclass(type(value), CLIPVisionModel) for value in gc.get_objects())


def test_vision_tower_is_not_loaded(clip, directory):
    before = vision_towers()
    tower = TextTower.resolve(str(directory))
    assert vision_towers() == before
    assert tower.visual_projection.weight.shape == clip[0].visual_projection.weight.shape


def test_directory_gives_the_same_selection(multi_head, compress, clip, directory):
    chosen = []
    for source in (clip, str(directory)):
        handle = compress(multi_head, budget=24, clip=source)
        multi_head(**ask("<image> what color is this ?"))
        chosen.append(handle.report.images[0].stages[0].indices)
        handle.remove()
    assert torch.equal(*chosen)


@pytest.mark.parametrize("wrong", [3, ("a", "b"), torch.nn.Linear(2, 2)])
def test_anything_else_is_refused(multi_head, compress, wrong):
    with pytest.raises(ValueError, match="pass a CLIP checkpoint"):
        compress(multi_head, clip=wrong)


def test_loaded_model_alone_says_what_is_missing(multi_head, compress, clip):
    with pytest.raises(ValueError, match=r"a pair \(CLIPModel, tokenizer\)"):
        compress(multi_head, clip=clip[0])


def test_a_clip_that_is_not_there_is_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="clip='.*nothing': neither a directory with a CLIP checkpoint nor an id"):
        TextTower.resolve(tmp_path / "nothing")


def test_a_checkpoint_is_loaded_once_and_again_after_it_was_written(clip, tmp_path):
    clip[0].save_pretrained(tmp_path)
    clip[1].save_pretrained(tmp_path)
    tower = TextTower.resolve(tmp_path)
    assert TextTower.resolve(str(tmp_path)) is tower
    other = copy.deepcopy(clip[0])
    torch.nn.init.zeros_(other.text_projection.weight)
    other.save_pretrained(tmp_path)
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))  # clocks may be coarse
    assert not TextTower.resolve(tmp_path).text_projection.weight.any()


@pytest.mark.parametrize("source", ["pair", "directory"])
def test_the_tower_follows_the_model_and_leaves_a_given_pair_alone(clip, tmp_path, compress, source):
    model = build_llava().to(torch.bfloat16)
    if source == "directory":
        clip[0].save_pretrained(tmp_path)
        clip[1].save_pretrained(tmp_path)
    handle = compress(model, budget=24, clip=clip if source == "pair" else tmp_path)
    tower = handle.settings.text_tower
    weights = [tower.text_projection.weight, tower.visual_projection.weight, next(tower.text_model.parameters())]
    assert {weight.dtype for weight in weights} == {torch.bfloat16} and clip[0].dtype == torch.float32
    inputs = ask("<image> what color is this ?")
    model(**{**inputs, "pixel_values": inputs["pixel_values"].to(torch.bfloat16)})
    assert handle.report.images[0].stages[0].maps["instruction"].isfinite().all()


def test_a_pair_that_lives_with_the_model_is_used_as_it_is(clip, multi_head, compress):
    handle = compress(multi_head, budget=24, clip=clip)
    assert handle.settings.text_tower.text_model is clip[0].text_model


def test_a_tower_for_another_device_goes_there(clip):
    tower = TextTower.resolve(clip, Home(torch.device("meta"), torch.float16))
    assert tower.text_projection.weight.is_meta and not clip[0].text_projection.weight.is_meta


def test_a_clip_of_another_width_is_refused_at_once(multi_head, compress, clip):
    config = copy.deepcopy(clip[0].config)
    config.vision_config.hidden_size = 36
    with pytest.raises(CovistError, match="image features of width 36, but the model's vision tower has 24"):
        compress(multi_head, clip=(CLIPModel(config), clip[1]))
