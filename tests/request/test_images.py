"""Pictures from files: upright RGB, whatever the file holds."""

import numpy as np
import pytest
from PIL import Image

from covist.request.images import load_image

ORIENTATION, QUARTER_TURN = 0x112, 6


def test_sixteen_bit_greys_keep_their_contrast(tmp_path):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    values = np.asarray(load_image(tmp_path / "ramp.png"))
    assert values[..., 0].flatten().tolist() == list(range(256))
    assert (values == values[..., :1]).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("picture.tiff" if mode == "CMYK" else "picture.png")
    Image.new("RGB", (5, 3), "white").convert(mode).save(path)
    loaded = load_image(path)
    assert loaded.mode == "RGB" and loaded.size == (5, 3)
    assert (np.asarray(loaded) == 255).all()


def test_a_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = QUARTER_TURN
    Image.new("RGB", (40, 20)).save(tmp_path / "photo.jpg", exif=exif)
    assert load_image(tmp_path / "photo.jpg").size == (20, 40)


def test_an_animation_shows_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "frames.gif", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "frames.gif").getpixel((0, 0)) == (255, 0, 0)
