"""Metadata of images: they turn an image, and can neither stop the process nor fill its memory."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import pytest
from PIL import Image, ImageOps, PngImagePlugin, features

from covist.errors import CovistError
from covist.request import image_parts
from covist.request.image_parts import HEAVY, MAX_STEPS
from covist.request.images import count_pixels, decode_image

ORIENTATION = 0x0112
TURNED = Image.new("RGB", (12, 8), "white")
TURNED.paste("red", (0, 0, 4, 8))
TURNED.paste("blue", (0, 0, 4, 4))


def saved(kind: str, **options) -> bytes:
    file = BytesIO()
    TURNED.save(file, kind, **options)
    return file.getvalue()


def turning(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def xmp(orientation: int) -> str:
    return f'<rdf:Description tiff:Orientation="{orientation}"/>'


def shared_tags(tags: int, length: int) -> bytes:
    """EXIF data of tags that all hold the same bytes: Pillow 12 copies them for each."""
    entries = b"".join(struct.pack("<HHII", 1000 + tag, 7, length - 100, 8) for tag in range(tags))
    data = b"II*\0" + struct.pack("<IH", 8, tags) + entries + bytes(4)
    return data.ljust(length, b"\0")


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def segment(marker: int, data: bytes = b"") -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def png_with(parts: bytes, after_pixels: bool = False) -> bytes:
    data = saved("PNG")
    place = data.index(b"IEND") - 4 if after_pixels else data.index(b"IDAT") - 4
    return data[:place] + parts + data[place:]


def jpeg_with(parts: bytes) -> bytes:
    data = saved("JPEG")
    return data[:2] + parts + data[2:]


def gif_with(parts: bytes) -> bytes:
    data = saved("GIF")
    place = data.index(b",\0\0\0\0")
    return data[:place] + parts + data[place:]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_an_image_is_turned_as_pillow_would_turn_it(kind, orientation):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    data = saved(kind, exif=turning(orientation))
    with Image.open(BytesIO(data)) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    decoded = decode_image(data)
    assert (decoded.size, decoded.tobytes()) == (expected.size, expected.tobytes())
    assert not decoded.getexif()


@pytest.mark.parametrize("written", ["XMP in PNG", "XMP in JPEG", "as ImageMagick does", "big-endian"])
def test_the_turn_is_found_wherever_programs_write_it(written):
    notes = PngImagePlugin.PngInfo()
    if written == "XMP in JPEG":
        data = saved("JPEG", xmp=xmp(6).encode())
    elif written == "big-endian":
        data = png_with(chunk(b"eXIf", b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, ORIENTATION, 3, 1, 6, 0, 0)))
    else:
        exif = turning(6).tobytes()
        name, text = (
            ("XML:com.adobe.xmp", xmp(6))
            if written == "XMP in PNG"
            else ("Raw profile type exif", f"\nexif\n{len(exif):8}\n{exif.hex()}\n")
        )
        notes.add_itxt(name, text)
        data = saved("PNG", pnginfo=notes)
    assert decode_image(data).size == (8, 12)


@pytest.mark.parametrize("entry", [(0x14A, 11, 1, 0), (0x8769, 4, 1, 2**31), (0x10F, 2, 2**32 - 1, 0)])
def test_other_tags_are_not_read(entry):
    """Pointers to further directories, lengths and fractions that make Pillow give up."""
    tags = struct.pack("<HHIIHHII", ORIENTATION, 3, 1, 6, *entry)
    data = png_with(chunk(b"eXIf", b"II*\0" + struct.pack("<IH", 8, 2) + tags + bytes(4)))
    assert decode_image(data).size == (8, 12)


FLOODS = {
    "chunks": lambda: png_with(chunk(b"prVt") * MAX_STEPS),
    "chunks after the pixels": lambda: png_with(chunk(b"prVt") * MAX_STEPS, after_pixels=True),
    "pixels in crumbs": lambda: png_with(chunk(b"IDAT") * MAX_STEPS, after_pixels=True),
    "colour profiles": lambda: png_with(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**19))) * HEAVY),
    "colour profiles after the pixels": lambda: png_with(
        chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**19))) * HEAVY, after_pixels=True
    ),
    "segments": lambda: jpeg_with(segment(0xE5) * MAX_STEPS),
    "segments after an end": lambda: jpeg_with(b"\xff\xd9" + segment(0xE5) * MAX_STEPS),
    "segments after a marker without a length": lambda: jpeg_with(b"\xff\xf0\xff\xff" + segment(0xE5) * MAX_STEPS),
    "EXIF data in pieces": lambda: jpeg_with(segment(0xE1, b"Exif\0\0x") * HEAVY),
    "filling bytes": lambda: jpeg_with(b"\xff" * MAX_STEPS),
    "comments": lambda: gif_with(b"!\xfe" + b"\x01x" * MAX_STEPS + b"\0"),
    "extensions": lambda: gif_with(b"!\x01\x01x\0" * MAX_STEPS),
    "extensions behind what looks like an image": lambda: gif_with(
        b"!\x01\0," + bytes(45) + b"!\x01\x01x\0" * MAX_STEPS
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_metadata_is_refused(flood):
    """10 MB of colour profiles took 23 s, and as long again when the image was decoded."""
    with pytest.raises(CovistError, match="^photo has far more metadata than images have; save it again"):
        decode_image(FLOODS[flood](), "photo")


@pytest.mark.parametrize("flood", [name for name in FLOODS if "pixels" not in name])
def test_a_flood_before_the_pixels_is_refused_with_the_header(flood):
    with pytest.raises(CovistError, match="far more metadata"):
        count_pixels(FLOODS[flood](), "photo")


@pytest.mark.parametrize("name", [b"Exif\0\0", b"MPF\0"])
def test_tags_that_share_their_bytes_are_refused(name):
    """64 kB took 312 MB with Pillow 12."""
    data = jpeg_with(segment(0xE1 if name.startswith(b"Exif") else 0xE2, name + shared_tags(1000, 60_000)))
    for read in (count_pixels, decode_image):
        with pytest.raises(CovistError, match="photo has tags that share their bytes; save it again without metadata"):
            read(data, "photo")


def test_tags_that_would_share_their_bytes_are_not_read_where_pillow_need_not(monkeypatch):
    """4 MB in a PNG file took more than 7 GB with Pillow 12."""
    monkeypatch.setattr(Image.Exif, "load", lambda exif, data: pytest.fail("all tags were read"))
    exif = shared_tags(1000, 60_000)
    for data in (png_with(chunk(b"eXIf", exif)), saved("WEBP", exif=exif)):
        assert decode_image(data).size == TURNED.size


def test_filling_bytes_between_scans_are_passed_over_once():
    """A pattern that tried every length took 2 s for 20 kB and four times as long for twice as many."""
    data = saved("JPEG")
    filled = data[:-2] + b"\xff" * 5_000_000 + b"\0" + data[-2:]
    assert decode_image(filled).size == TURNED.size


ORDINARY = {
    "a colour profile in 255 segments": lambda: jpeg_with(
        b"".join(segment(0xE2, b"ICC_PROFILE\0" + bytes([number, 255]) + bytes(9)) for number in range(1, 256))
    ),
    "EXIF data of 60 kB": lambda: saved("JPEG", exif=b"Exif\0\0" + shared_tags(1, 60_000)),
    "rational numbers that share their place": lambda: saved("JPEG", exif=b"Exif\0\0" + shared_tags(3, 1000)),
    "XMP in an animation": lambda: gif_with(b"!\xff\x0bXMP DataXMP" + b"x" * 121 * 3000 + b"\0"),
    "many notes": lambda: png_with(
        chunk(b"tEXt", b"a\0b") * 1000 + chunk(b"zTXt", b"a\0\0" + zlib.compress(b"b")) * 50
    ),
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_what_cameras_and_editors_write_is_read(kind):
    assert decode_image(ORDINARY[kind]()).size == TURNED.size


def test_a_large_image_has_as_many_pieces_as_it_needs(monkeypatch):
    monkeypatch.setattr(image_parts, "MAX_STEPS", 50)
    noise, file = Image.effect_noise((300, 300), 100), BytesIO()
    noise.save(file, "PNG", compress_level=0)
    head, _, rest = file.getvalue().partition(b"IDAT")
    length = int.from_bytes(head[-4:], "big")
    pieces = [chunk(b"IDAT", rest[start : start + 1024]) for start in range(0, length - 1024, 1024)]
    pieces.append(chunk(b"IDAT", rest[1024 * len(pieces) : length]))
    assert len(pieces) > 50
    assert decode_image(head[:-4] + b"".join(pieces) + rest[length + 4 :]).size == noise.size
