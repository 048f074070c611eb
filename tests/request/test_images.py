"""Images from files: upright RGB, whatever the file holds."""

import struct
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin, features

from covist.errors import CovistError
from covist.request.images import MAX_RATIO, check_image, count_pixels, decode_image, image_files, load_image
from covist.request.jpeg_scans import MAX_SCANS

ORIENTATION, QUARTER_TURN = 0x112, 6
WHITE, RED = (255, 255, 255), (255, 0, 0)


def greys(path) -> list[int]:
    values = np.asarray(load_image(path))
    assert (values == values[..., :1]).all()
    return values[..., 0].flatten().tolist()


def test_sixteen_bit_greys_keep_their_contrast(tmp_path):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    assert greys(tmp_path / "ramp.png") == list(range(256))


def test_floats_between_0_and_1_are_black_to_white(tmp_path):
    ramp = (np.arange(256, dtype=np.float32) / 255).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "ramp.tiff")
    assert greys(tmp_path / "ramp.tiff") == list(range(256))


def test_a_dark_float_image_stays_dark(tmp_path):
    Image.fromarray(np.full((2, 2), 0.2, np.float32)).save(tmp_path / "dark.tiff")
    assert greys(tmp_path / "dark.tiff") == [51] * 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 100, 200], [0, 128, 255]),
        ([-1, 0, 1], [0, 128, 255]),
        ([-3, np.nan, 1], [0, 0, 255]),
        ([0, 2, np.inf], [0, 255, 255]),
        ([7, 7, 7], [255] * 3),
        ([np.nan, np.nan, np.nan], [0] * 3),
    ],
)
def test_floats_beyond_0_to_1_are_scaled_by_their_range(tmp_path, values, expected):
    Image.fromarray(np.array([values], np.float32)).save(tmp_path / "floats.tiff")
    assert greys(tmp_path / "floats.tiff") == expected


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("image.tiff" if mode == "CMYK" else "image.png")
    Image.new("RGB", (5, 3), "white").convert(mode).save(path)
    loaded = load_image(path)
    assert loaded.mode == "RGB" and loaded.size == (5, 3)
    assert (np.asarray(loaded) == 255).all()


@pytest.mark.parametrize(
    ("mode", "opaque", "invisible", "seen"),
    [("RGBA", (*RED, 255), (*RED, 0), RED), ("LA", (90, 255), (90, 0), (90, 90, 90))],
)
def test_alpha_is_composited_on_white(tmp_path, mode, opaque, invisible, seen):
    image = Image.new(mode, (2, 1), opaque)
    image.putpixel((1, 0), invisible)
    image.save(tmp_path / "image.png")
    loaded = load_image(tmp_path / "image.png")
    assert (loaded.getpixel((0, 0)), loaded.getpixel((1, 0))) == (seen, WHITE)


def test_half_transparent_is_half_white(tmp_path):
    Image.new("RGBA", (1, 1), (0, 0, 0, 128)).save(tmp_path / "image.png")
    assert load_image(tmp_path / "image.png").getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize("name", ["image.png", "image.gif"])
def test_a_transparent_palette_entry_is_white(tmp_path, name):
    image = Image.new("P", (2, 1), 0)
    image.putpalette([*RED, 0, 0, 255])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / name, transparency=1)
    loaded = load_image(tmp_path / name)
    assert (loaded.getpixel((0, 0)), loaded.getpixel((1, 0))) == (RED, WHITE)


def test_a_palette_with_alpha_of_its_own_is_composited(tmp_path, monkeypatch):
    """No format that Pillow writes holds the mode PA, so the opened file is replaced by such an image."""
    image = Image.new("PA", (2, 1), (0, 255))
    image.putpalette([*RED, 0, 0, 255])
    image.putpixel((1, 0), (1, 0))
    Image.new("L", (2, 1)).save(tmp_path / "image.png")
    monkeypatch.setattr(Image, "open", lambda file, formats: image)
    loaded = load_image(tmp_path / "image.png")
    assert (loaded.getpixel((0, 0)), loaded.getpixel((1, 0))) == (RED, WHITE)


def test_a_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = QUARTER_TURN
    Image.new("RGB", (40, 20)).save(tmp_path / "photo.jpg", exif=exif)
    assert load_image(tmp_path / "photo.jpg").size == (20, 40)


def test_an_animation_shows_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "frames.gif", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "frames.gif").getpixel((0, 0)) == RED


@pytest.mark.parametrize("read", [load_image, check_image, lambda path: count_pixels(path.read_bytes())])
@pytest.mark.parametrize("turned", [False, True])
def test_an_image_that_is_too_narrow_is_refused_by_its_header(tmp_path, read, turned):
    """CLIP's processor would first make the short side 336 pixels: 2.6 GB for 1 x 2,000 pixels."""
    for length, is_read in ((MAX_RATIO, True), (MAX_RATIO + 1, False)):
        Image.new("L", (1, length) if turned else (length, 1)).save(tmp_path / "image.png")
        if is_read:
            read(tmp_path / "image.png")
        else:
            with pytest.raises(CovistError, match=f"may be at most {MAX_RATIO} times the other; crop it"):
                read(tmp_path / "image.png")


def with_scans(count: int, appended: bytes = b"") -> bytes:
    """A progressive JPEG file whose last scan is repeated until it has `count` of them."""
    file = BytesIO()
    Image.new("L", (16, 16), 120).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    own, last = whole.count(b"\xff\xda"), whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * (count - own) + whole[-2:] + appended


def test_a_jpeg_file_of_very_many_scans_is_refused_before_it_is_decoded(monkeypatch):
    assert decode_image(with_scans(MAX_SCANS)).size == (16, 16)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: pytest.fail("it was decoded"))
    with pytest.raises(CovistError, match=f"image has more than {MAX_SCANS} scans; save it again"):
        decode_image(with_scans(MAX_SCANS + 1))


@pytest.mark.parametrize("kind", ["a video after the image", "a thumbnail", "stuffed and filled bytes"])
def test_bytes_that_only_resemble_scan_markers_are_not_counted(kind):
    marker = b"\xff\xda" * 2 * MAX_SCANS
    if kind == "a thumbnail":
        data = with_scans(6)
        data = data[:2] + b"\xff\xe5" + struct.pack(">H", len(marker) + 2) + marker + data[2:]
    elif kind == "a video after the image":
        data = with_scans(6, marker)
    else:
        data = with_scans(6).replace(b"\xff\xda", b"\xff" * 300 + b"\xff\xda")
    assert decode_image(data).size == (16, 16)


def broken_avif() -> bytes:
    """Pillow raises RuntimeError."""
    if not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    file = BytesIO()
    Image.new("RGB", (9, 7), "red").save(file, "AVIF")
    data = file.getvalue()
    return data[: data.index(b"mdat") + 4] + bytes(len(data))


def broken_profile() -> bytes:
    """A photograph to be turned by text that is not hexadecimal: Python raises ValueError."""
    notes, file = PngImagePlugin.PngInfo(), BytesIO()
    notes.add_text("Raw profile type exif", "\nexif\n       4\nwords\n")
    Image.new("RGB", (4, 2)).save(file, "PNG", pnginfo=notes)
    return file.getvalue()


@pytest.mark.parametrize("made", [broken_profile, broken_avif])
def test_any_error_of_a_decoder_gives_one_line(made):
    with pytest.raises(CovistError, match="^photo is damaged or truncated") as refused:
        decode_image(made(), "photo")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["https://example.com/cat.png", "http:/example.com/cat.png", "DATA:image/png;base64,x"])
def test_a_url_is_not_read_and_the_message_says_so(url):
    with pytest.raises(CovistError, match="URLs are not read; download"):
        load_image(url)


def test_names_with_numbers_of_any_script_are_sorted(tmp_path):
    """A superscript is a digit to Unicode, but no number to Python."""
    names = ["10²5.png", "9²5.png", "²3.png", "٢.png", "١٠.png", "a½b.png", "①.png", "x" + "9" * 240 + ".png"]
    for name in names:
        (tmp_path / name).touch()
    assert sorted(file.name for file in image_files(tmp_path)) == sorted(names)
    found = [file.name for file in image_files(tmp_path)]
    assert found.index("9²5.png") < found.index("10²5.png") and found.index("٢.png") < found.index("١٠.png")
