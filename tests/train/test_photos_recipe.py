"""The recipe of the photograph bed, on rendered stand-ins and a tower that was never trained."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPVisionConfig, CLIPVisionModel

from covist import tiny
from covist.eval.photos import photo_suite
from covist.eval.photos.data import DEVELOPMENT, TRAIN, read_photos
from covist.eval.photos.subject import CaptionSubject
from train.photos import features, train
from train.photos.text import vocabulary
from train.runner import restore

SIZE, PATCH = 112, 8  # 14 x 14 patches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("bed")
    (made / "data" / "images").mkdir(parents=True)
    rows = ["image,caption"]
    for number in range(180):
        image = tiny.scene_image(tiny.sample_scene(number)).resize((SIZE, SIZE))
        image.save(made / "data" / "images" / f"{number}.png")
        rows += [f"{number}.png,A red circle, above a blue square.", f"{number}.png,Two squares"]
    (made / "data" / "captions.txt").write_text("\n".join(row.replace(", above", " above") for row in rows))
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    torch.manual_seed(0)
    CLIPVisionModel(CLIPVisionConfig(image_size=SIZE, patch_size=PATCH, **shape)).save_pretrained(made / "tower")
    return made


def options(folder, **further):
    given = {"data": folder / "data", "tower": folder / "tower", "size": SIZE, **further}
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def computed(folder):
    features.main(options(folder, out=folder / "features"))
    return folder / "features"


@pytest.fixture(scope="module")
def trained(folder, computed):
    train.main(options(folder, features=computed, out=folder / "run", steps=2))
    return folder / "run"


def test_features_are_those_of_the_layer_before_the_last(folder, computed):
    photo = read_photos(folder / "data", TRAIN)[0]
    tower = CLIPVisionModel.from_pretrained(folder / "tower")
    pixels = features.image_processor(SIZE)([Image.open(photo.path)], return_tensors="pt").pixel_values
    with torch.no_grad():
        expected = tower(pixels, output_hidden_states=True).hidden_states[-2][0, 1:]
    stored = np.load(features.shard_path(computed, TRAIN, 0))[0]
    assert stored.shape == (196, 32) and stored.dtype == np.float16
    assert torch.from_numpy(stored).float() == pytest.approx(expected, abs=0.05 * float(expected.std()))


def test_only_missing_features_are_computed_and_no_test_images(folder, computed, capsys):
    names = {path.name for path in computed.iterdir()}
    assert names == {"development-0000.npy", "train-0000.npy", "train-0001.npy"}
    (computed / "train-0001.npy").unlink()
    features.main(options(folder, out=computed))
    assert capsys.readouterr().out.split() == ["train-0001.npy"]


def test_a_tower_for_larger_images_equals_interpolated_positions(folder):
    larger, plain = features.load_tower(folder / "tower", 144), CLIPVisionModel.from_pretrained(folder / "tower")
    pixels = torch.randn(1, 3, 144, 144)
    with torch.no_grad():
        expected = plain(pixels, interpolate_pos_encoding=True).last_hidden_state
        assert torch.equal(larger(pixels).last_hidden_state, expected)


def test_rare_words_are_not_in_the_vocabulary():
    words = vocabulary(["A dog!"] * 4 + ["a cat"] * 3)
    assert "dog" in words and "cat" not in words and "describe" in words and "!" not in words


def test_the_exported_model_reads_captions_as_training_does(folder, trained):
    """Packing, folded standardisation, prompt and positions: the loss through the whole model is the same."""
    item = photo_suite(folder / "data").items(1, "even")[0]
    photo = read_photos(folder / "data", DEVELOPMENT)[0]
    subject = CaptionSubject.resolve(str(trained / "model"), 8)
    words = [loss for caption in subject.answer(item).losses for loss in caption]

    bank = train.FeatureBank(folder / "data", folder / "features", DEVELOPMENT)
    captioner = train.build(folder / "data", folder / "tower", SIZE, bank)[1].eval()
    restore(trained / "captions.pt", {"captioner": captioner})
    tower = CLIPVisionModel.from_pretrained(folder / "tower")
    pixels = features.image_processor(SIZE)([item.image], return_tensors="pt").pixel_values
    with torch.no_grad():
        seen = tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
        losses = captioner.losses(captioner.visual(seen), torch.arange(196), [photo])
    ends = captioner.packer([photo]).labels
    ends = ends[ends != train.IGNORED] == captioner.packer.tokenizer.eos_token_id
    assert words == pytest.approx(losses[~ends].tolist(), abs=2e-3)


def test_a_second_call_continues(folder, computed, trained):
    train.main(options(folder, features=computed, out=trained, steps=3))
    assert torch.load(trained / "captions.pt")["optimiser"]["steps"] == 3
